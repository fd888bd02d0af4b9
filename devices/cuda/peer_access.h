// Turns on peer access between GPUs and tests the access, because some drivers report peer access that loses or
// corrupts data. GPUs are identified by the device numbers of the CUDA runtime. Thread-safe; waits for the GPUs.
#pragma once

#include <cuda_runtime_api.h>

#include <array>
#include <cstdint>
#include <span>
#include <string>
#include <vector>

namespace shoal::cuda {

/// Lets kernels and copies of `gpu` use the memory of `peer`, including memory from the pool of `peer`. Also succeeds
/// if other code of the process has already turned on this access.
cudaError_t turn_on_peer_access(int gpu, int peer);
/// Turns off the access of `gpu` to the memory of `peer`. Later copies between the two GPUs go through the host.
void turn_off_peer_access(int gpu, int peer);

/// The access of one GPU to another GPU.
struct PeerAccess {
  std::string problem;    ///< one line; empty if access works
  bool is_wrong = false;  ///< whether the driver reports access but the test found wrong data
};
/// Turns on the access of two GPUs to each other, and tests each direction in three ways. A kernel writes a pattern to
/// the other GPU, a copy transfers a pattern, and a kernel reads a pattern that the other GPU wrote. If one direction
/// fails, both directions are turned off, because a copy may use either direction. Returns the access of `a` to `b` and
/// the access of `b` to `a`. Throws OutOfMemory or DeviceError if a GPU cannot run the test.
std::array<PeerAccess, 2> connect_peers(int a, int b);

/// Returns one line for each ordered pair of different GPUs whose access does not work. `gpus` may contain duplicates.
/// Each pair is tested once per process. Throws the exceptions of connect_peers().
std::vector<std::string> peer_problems(std::span<const int> gpus);

// Kernels of the test (peer_kernels.cu).

inline constexpr int kPatternWords = 1 << 15;  ///< 128 KiB, which is two pages of 64 KiB
/// Fills `words` with a pattern that differs for every word and every seed.
void write_pattern(cudaStream_t stream, uint32_t* words, uint32_t seed);
/// Counts the words that differ from the pattern, and adds their number to *wrong.
void count_wrong_words(cudaStream_t stream, const uint32_t* words, uint32_t seed, uint32_t* wrong);

}  // namespace shoal::cuda
