# Labels tests in which blocks, streams or threads exchange data as cuda_threads. The preset tsan-cuda runs this label.
# ctest reads this file after the list of test_cuda's tests (test_cuda_TESTS).
set(suites P2p Late Meta Host Waiting Launch Joined Capture Emulator Early Memory Sanitizer Streams Nccl Switch Router Expert)
set(repetitions "Missing|OwnBlocks|/(f16|bf16|q[456])")  # repeat an exchange with more sizes or types
list(JOIN suites "|" suites)
foreach(test IN LISTS test_cuda_TESTS)
  if(test MATCHES "${suites}" AND NOT test MATCHES "${repetitions}")
    set_tests_properties("${test}" PROPERTIES LABELS "cuda;cuda_threads")
  endif()
endforeach()
