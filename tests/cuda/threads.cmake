# Tests in which blocks, streams or threads exchange data get the label cuda_threads. The preset tsan-cuda runs these
# tests. ctest first reads test_cuda_TESTS, the list of all tests of test_cuda, and then this file. An entry selects the
# suites whose names contain it, or the tests that begin with Suite.Name. An entry that selects no test is an error, so
# a renamed test cannot lose its label unnoticed.
if(NOT test_cuda_TESTS)
  return()  # test_cuda is not built
endif()
set(entries
  P2p Late Meta Host Waiting Launch Joined Capture Emulator Early Memory Streams Nccl Switch Router Expert CudaAttention
  CudaFamily CudaFusion CudaRows CudaRuntime CudaTrace ColumnRecord MulMatIdTiles MulMatTilesViews SessionResults
  TokenKernels MulMatVec.HandlesExperts MulMatVec.ExpertsOfOtherDevices MulMatVec.HandlesLongRows)
list(TRANSFORM entries APPEND "[A-Za-z0-9]*[.]" REGEX "^[^.]+$")
set(repetitions Missing OwnBlocks /f16 /bf16 /q[456])  # these tests repeat an exchange with more sizes or types
foreach(patterns IN ITEMS entries repetitions)
  foreach(pattern IN LISTS ${patterns})
    set(tests ${test_cuda_TESTS})
    list(FILTER tests INCLUDE REGEX "${pattern}")
    if(NOT tests)
      message(FATAL_ERROR "tests/cuda/threads.cmake: '${pattern}' selects no test; correct this entry")
    endif()
    list(APPEND ${patterns}_tests ${tests})
  endforeach()
endforeach()
list(REMOVE_ITEM entries_tests ${repetitions_tests})
set_tests_properties(${entries_tests} PROPERTIES LABELS "cuda;cuda_threads")
