// What tests do with the emulator of the CUDA runtime besides calling it: make calls fail, and see which were made.
// Thread-safe. GPUs are configured by environment variables (docs/cuda_emulator.md), which are read when they are
// needed.
#pragma once

#include <cuda_runtime_api.h>

#include <string>
#include <vector>

namespace shoal::cuda::emulator {

/// The nth call of `name` from now on (1 = the next one) returns `error` and does nothing else, and so do the `times` -
/// 1 after it. Launches of kernels are calls of "cudaLaunchKernel".
void fail_call(const std::string& name, int nth, cudaError_t error, int times = 1);
/// Forgets what was asked of fail_call().
void clear_faults();

/// From now on calls are written down.
void record_calls();
/// The names of the calls since record_calls(), which ends. Calls that only ask (cudaGetLastError, cudaGetErrorName and
/// the like) are left out.
std::vector<std::string> take_calls();

/// A kernel that was launched or captured.
struct LaunchRecord {
  std::string file;  ///< of the line that launches it: "norm.cu"
  unsigned threads;  ///< of a block
  size_t shared_bytes;
  bool early;  ///< by launch_early()
};
/// The launches since record_calls(), which ends.
std::vector<LaunchRecord> take_launches();

/// How many asynchronous copies of kernels since the last call read a vector that lies partly behind its allocation.
uint64_t take_copies_over_edges();
/// How many threads are inside of a call now.
int calls_in_progress(const std::string& name);
/// How many blocks are on a GPU now; with SHOAL_EMULATED_RESIDENCY only.
int resident_blocks(int gpu);

}  // namespace shoal::cuda::emulator
