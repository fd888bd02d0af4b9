# Configures and builds an external project that uses an installation of shoal. If PROGRAM is set, runs this program of
# the project.
function(run)
  execute_process(COMMAND ${ARGN} RESULT_VARIABLE result OUTPUT_VARIABLE output ERROR_VARIABLE output)
  if(NOT result EQUAL 0)
    message(FATAL_ERROR "${ARGN}\n${output}")
  endif()
endfunction()

set(flags "")
if(SANITIZE)
  set(flags "-fsanitize=${SANITIZE}")
endif()
# CMake searches for dependencies in the folders in which the build of shoal found them.
if(FOUND_IN)
  set(ENV{CMAKE_PREFIX_PATH} "${FOUND_IN}:$ENV{CMAKE_PREFIX_PATH}")
endif()
file(REMOVE_RECURSE ${WORK})
run(${CMAKE_COMMAND} -S ${SOURCE} -B ${WORK} -G ${GENERATOR} -D CMAKE_PREFIX_PATH=${PREFIX} -D CMAKE_BUILD_TYPE=${BUILD_TYPE}
    -D CMAKE_C_COMPILER=${C_COMPILER} -D CMAKE_CXX_COMPILER=${COMPILER} -D CMAKE_CXX_FLAGS=${flags}
    -D CMAKE_C_FLAGS=${flags})
run(${CMAKE_COMMAND} --build ${WORK})
if(PROGRAM)
  run(${CMAKE_COMMAND} -E env SHOAL_CPU_DEVICES=2 ${WORK}/${PROGRAM} ${ARGUMENT})
endif()
