// Functions for tests of the CUDA plug-in. Tests can record the calls of the emulated CUDA runtime, and can make a call
// fail. All functions are thread-safe. Environment variables configure the GPUs (docs/cuda_emulator.md). The runtime
// reads each variable when it needs the value.
#pragma once

#include <cuda_runtime_api.h>

#include <string>
#include <vector>

namespace shoal::cuda::emulator {

/// Makes calls of `name` fail: the nth call from now on (1 = the next call) and the `times` - 1 calls after it. These
/// calls return `error` and have no other effect. Kernel launches count as calls of "cudaLaunchKernel".
void fail_call(const std::string& name, int nth, cudaError_t error, int times = 1);
/// Removes all faults set by fail_call().
void clear_faults();

/// Starts to record calls.
void record_calls();
/// Stops recording and returns the names of the recorded calls. Queries such as cudaGetLastError are not recorded.
std::vector<std::string> take_calls();

/// A launched or captured kernel.
struct LaunchRecord {
  std::string file;  ///< source file of the launch, such as "norm.cu"
  unsigned threads;  ///< threads per block
  size_t shared_bytes;
  bool early;  ///< whether launch_early() launched the kernel
};
/// Stops recording and returns the recorded launches.
std::vector<LaunchRecord> take_launches();

/// Returns the number of asynchronous 16-byte copies whose source is only partly in an allocation. Resets this number
/// to zero.
uint64_t take_copies_over_edges();
/// Number of threads that are currently in a call of `name`.
int calls_in_progress(const std::string& name);
/// Number of blocks that occupy a GPU. The number is always 0 without SHOAL_EMULATED_RESIDENCY.
int resident_blocks(int gpu);

}  // namespace shoal::cuda::emulator
