# Enables a program to load plug-ins. A plug-in is a shared object that provides a family of devices
# (devices/plugin.h). The build and the installed package use this file.
#
# A plug-in links no library of shoal. The program provides the symbols that the plug-in needs. So
# shoal_enable_plugins(TARGET) exports the symbols of the program. The program also gets all objects of the libraries
# base, graph, devices and processes. It must link shoal::processes, directly or through another library.
function(shoal_enable_plugins target)
  set_target_properties(${target} PROPERTIES ENABLE_EXPORTS ON)
  # The linker reads these archives before the objects of the program. If the same archive appears again later on the
  # command line, the linker takes no further objects from it.
  target_link_options(${target} PRIVATE
    "LINKER:--whole-archive,$<TARGET_FILE:shoal::base>,$<TARGET_FILE:shoal::graph>,$<TARGET_FILE:shoal::devices>,$<TARGET_FILE:shoal::processes>,--no-whole-archive")
endfunction()
