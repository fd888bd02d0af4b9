# Tests in which blocks, streams or threads exchange data get the label cuda_threads. The preset tsan-cuda runs these
# tests. ctest first reads test_cuda_TESTS, the list of all tests of test_cuda, and then this file.
set(suites P2p Late Meta Host Waiting Launch Joined Capture Emulator Early Memory Sanitizer Streams Nccl Switch Router Expert)
set(repetitions "Missing|OwnBlocks|/(f16|bf16|q[456])")  # these tests repeat an exchange with more sizes or types
list(JOIN suites "|" suites)
foreach(test IN LISTS test_cuda_TESTS)
  if(test MATCHES "${suites}" AND NOT test MATCHES "${repetitions}")
    set_tests_properties("${test}" PROPERTIES LABELS "cuda;cuda_threads")
  endif()
endforeach()
