// Peer access between GPUs, turned on and tried: drivers report access that loses or mixes up data. GPUs have CUDA's
// numbers. Thread-safe; waits for the GPUs' answers.
#pragma once

#include <cuda_runtime_api.h>

#include <array>
#include <cstdint>
#include <span>
#include <string>
#include <vector>

namespace shoal::cuda {

/// Kernels of `gpu` and copies may use memory of `peer`, also what is allocated in the order of its streams. Another
/// part of the process may have turned it on before, as far as it needed it.
cudaError_t turn_on_peer_access(int gpu, int peer);
/// Copies go through the host then.
void turn_off_peer_access(int gpu, int peer);

/// The access of one GPU to another.
struct PeerAccess {
  std::string problem;    ///< one line; empty: it works
  bool is_wrong = false;  ///< there is access, but data were lost
};
/// Turns on the access of each of the two GPUs to the other and tries it: a kernel on one writes a pattern that the
/// other checks, so does a copy, and a kernel checks a pattern that the other GPU wrote. If one way does not work both
/// are turned off, so that copies do not use them either. Returns the access of `a` to `b` and that of `b` to `a`.
/// Throws OutOfMemory and DeviceError if a GPU cannot try it.
std::array<PeerAccess, 2> connect_peers(int a, int b);

/// A line for each ordered pair of different GPUs among these without working access; a GPU may be named several times.
/// A pair is tried once in a process. Throws what connect_peers() throws.
std::vector<std::string> peer_problems(std::span<const int> gpus);

// The kernels that try it (peer_kernels.cu).

inline constexpr int kPatternWords = 1 << 15;  ///< 128 KiB: two small pages
/// Fills `words` with a pattern that differs in every word and for every seed.
void write_pattern(cudaStream_t stream, uint32_t* words, uint32_t seed);
/// Adds the number of words that are not as written to *wrong.
void count_wrong_words(cudaStream_t stream, const uint32_t* words, uint32_t seed, uint32_t* wrong);

}  // namespace shoal::cuda
