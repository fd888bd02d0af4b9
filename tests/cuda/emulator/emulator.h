// What tests do with the emulator of the CUDA runtime besides calling it: make calls fail, and see which were made.
// Thread-safe. GPUs are configured by environment variables, which are read when they are needed:
//
//   SHOAL_EMULATED_GPUS=2           how many (1); 0: cudaErrorNoDevice
//   SHOAL_EMULATED_SM=90,86         compute capability of each (90); the last one of the list counts for the rest
//   SHOAL_EMULATED_BUILT=80,90      those that kernels count as compiled for (80,86,89,90,120)
//   SHOAL_EMULATED_MEMORY=1048576   bytes of each (1 GiB)
//   SHOAL_EMULATED_PROCESSORS=132   multiprocessors of each (8)
//   SHOAL_EMULATED_PEERS=0          GPUs do not reach each other (they do)
//   SHOAL_EMULATED_LYING_PEERS=0>1  copies from GPU 0 to GPU 1 arrive changed; more pairs after commas
//   SHOAL_EMULATED_RESIDENCY=1      blocks need room on a multiprocessor (residency.h)
//   SHOAL_EMULATED_EARLY=1          kernels of launch_early() begin before the one in front of them does (launch.h)
//   SHOAL_EMULATED_WEAK=1           words of store_release() and store_pair() arrive late, pairs in any order
//                                   (weak_memory.h)
//   SHOAL_EMULATED_ORDER=reverse    in which the threads of a block start: forward, reverse, random
//   SHOAL_EMULATED_BLOCKS=reverse   in which the blocks of a launch start: forward, reverse
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
/// How many blocks wait for room there.
int blocks_without_room(int gpu);

}  // namespace shoal::cuda::emulator
