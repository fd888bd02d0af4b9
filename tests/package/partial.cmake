# Tests the installation of two builds: a build with only the program (as in scripts/quickstart), and a complete build.
cmake_minimum_required(VERSION 3.22)
file(REMOVE_RECURSE ${WORK})

function(run)
  execute_process(COMMAND ${ARGN} RESULT_VARIABLE result OUTPUT_VARIABLE output ERROR_VARIABLE output)
  if(NOT result EQUAL 0)
    message(FATAL_ERROR "${ARGN}\n${output}")
  endif()
endfunction()

# Builds `target`, installs the build, and stores the list of installed files that match `pattern` in `found`.
function(installed_after target pattern found)
  run(${CMAKE_COMMAND} --build ${WORK}/build --target ${target})
  run(${CMAKE_COMMAND} --install ${WORK}/build --prefix ${WORK}/${target})
  file(GLOB_RECURSE files RELATIVE ${WORK}/${target} ${WORK}/${target}/${pattern})
  set(${found} "${files}" PARENT_SCOPE)
endfunction()

run(${CMAKE_COMMAND} -S ${SOURCE} -B ${WORK}/build -G ${GENERATOR} -D CMAKE_CXX_COMPILER=${COMPILER}
    -D CMAKE_INSTALL_LIBDIR=lib)
installed_after(shoal "*meta*" files)
foreach(file lib/libshoal_meta.a include/shoal/meta/meta.h)
  if(NOT file IN_LIST files)
    message(FATAL_ERROR "${file} is not installed with the program; installed files of meta: ${files}")
  endif()
endforeach()
installed_after(all "*cuda.so" files)
if(NOT files STREQUAL "lib/shoal/libshoal-cuda.so")
  message(FATAL_ERROR "the built plug-in is not installed; installed files: ${files}")
endif()
