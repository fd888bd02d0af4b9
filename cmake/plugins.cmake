# Plug-ins: shared objects that bring a family of devices (devices/plugin.h). Used by the build and by the package.
#
# shoal_enable_plugins(TARGET) lets a program load plug-ins. They link no library of shoal: what they use they find in the
# program, which therefore has the libraries base, graph, devices and processes whole and exports its symbols. The program
# must link shoal::processes or a library that does.
function(shoal_enable_plugins target)
  set_target_properties(${target} PROPERTIES ENABLE_EXPORTS ON)
  # Before the program's own objects; the same archives after them add nothing more.
  target_link_options(${target} PRIVATE
    "LINKER:--whole-archive,$<TARGET_FILE:shoal::base>,$<TARGET_FILE:shoal::graph>,$<TARGET_FILE:shoal::devices>,$<TARGET_FILE:shoal::processes>,--no-whole-archive")
endfunction()
