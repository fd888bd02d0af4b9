// Functions with which tests make calls of the emulated CUDA runtime fail and record calls. Thread-safe. Environment
// variables configure the GPUs (docs/cuda_emulator.md). The runtime reads each variable when it needs the value.
#pragma once

#include <cuda_runtime_api.h>

#include <string>
#include <vector>

namespace shoal::cuda::emulator {

/// Makes the nth call of `name` from now on (1 = the next call) and the `times` - 1 calls after it return `error`
/// without any other effect. Kernel launches count as calls of "cudaLaunchKernel".
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
  bool early;  ///< launched by launch_early()
};
/// Stops recording and returns the recorded launches.
std::vector<LaunchRecord> take_launches();

/// Returns the number of kernels' asynchronous copies that read a vector partly outside of its allocation, and resets
/// it to zero.
uint64_t take_copies_over_edges();
/// Number of threads that are currently inside of a call of `name`.
int calls_in_progress(const std::string& name);
/// Number of blocks that occupy a GPU. Always 0 without SHOAL_EMULATED_RESIDENCY.
int resident_blocks(int gpu);

}  // namespace shoal::cuda::emulator
