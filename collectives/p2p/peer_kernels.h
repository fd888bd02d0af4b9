// The kernels that try out peer access.
#pragma once

#include <cuda_runtime_api.h>

#include <cstdint>

namespace shoal::collectives::p2p {

inline constexpr int kPatternWords = 1 << 18;  ///< 1 MiB: several pages of most kinds of mapping

/// Fills `words` with a pattern that differs in every word and for every seed.
void write_pattern(cudaStream_t stream, uint32_t* words, uint32_t seed);
/// Adds the number of words that are not as written to *wrong.
void count_wrong_words(cudaStream_t stream, const uint32_t* words, uint32_t seed, uint32_t* wrong);

}  // namespace shoal::collectives::p2p
