// Peer access between GPUs, turned on and verified: drivers report access that then loses or mixes up data, so that
// each ordered pair is tried once in a process before it is trusted. Thread-safe; waits for the GPUs' answers.
#pragma once

#include <cuda_runtime_api.h>

#include <cstdint>
#include <span>
#include <string>
#include <vector>

namespace shoal::collectives::p2p {

/// Lets each of the two GPUs read and write memory of the other and tries it: a kernel on one writes a pattern that the
/// other checks, and checks a pattern that the other wrote. Where one way is wrong both are turned off, so that copies
/// do not use them either. Empty if all is well with what `from` does, or what is wrong, in one line. The GPUs by
/// CUDA's numbers.
std::string verify_peer(int from, int to);

/// A line for each bad ordered pair of different GPUs among these; a GPU may be named several times. A pair is tried
/// once in a process.
std::vector<std::string> verify_peers(std::span<const int> gpus);

// The kernels that try it (peer_kernels.cu).

inline constexpr int kPatternWords = 1 << 18;  ///< 1 MiB: several pages of most kinds of mapping
/// Fills `words` with a pattern that differs in every word and for every seed.
void write_pattern(cudaStream_t stream, uint32_t* words, uint32_t seed);
/// Adds the number of words that are not as written to *wrong.
void count_wrong_words(cudaStream_t stream, const uint32_t* words, uint32_t seed, uint32_t* wrong);

}  // namespace shoal::collectives::p2p
