# Installs a build into an empty folder. In a folder with old files, a test could find an old file instead of a file
# that the installation lacks.
file(REMOVE_RECURSE ${PREFIX})
execute_process(COMMAND ${CMAKE_COMMAND} --install ${BUILD} --prefix ${PREFIX} RESULT_VARIABLE result)
if(NOT result EQUAL 0)
  message(FATAL_ERROR "the installation failed")
endif()
