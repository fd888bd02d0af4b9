# The program loads a plug-in, lists the device of the plug-in and exits with status 0.
execute_process(COMMAND ${PROGRAM} devices --plugin ${PLUGIN}
                RESULT_VARIABLE result OUTPUT_VARIABLE output ERROR_VARIABLE output)
if(NOT result EQUAL 0 OR NOT output MATCHES "SIMPLE0 .*plain loops.*SIMPLE: plug-in ")
  message(FATAL_ERROR "exit status ${result}\n${output}")
endif()
