# Plug-ins are shared objects that provide a family of devices (devices/plugin.h). The build and the installed package
# use this file.
#
# shoal_enable_plugins(TARGET) lets a program load plug-ins. Plug-ins link no library of shoal. The program provides the
# symbols that they need. It exports its symbols and contains the whole libraries base, graph, devices and processes.
# The program must link shoal::processes, directly or through another library.
function(shoal_enable_plugins target)
  set_target_properties(${target} PROPERTIES ENABLE_EXPORTS ON)
  # The whole archives come before the program's objects. The same archives after the objects then add nothing.
  target_link_options(${target} PRIVATE
    "LINKER:--whole-archive,$<TARGET_FILE:shoal::base>,$<TARGET_FILE:shoal::graph>,$<TARGET_FILE:shoal::devices>,$<TARGET_FILE:shoal::processes>,--no-whole-archive")
endfunction()
