// Guesses the next tokens of a text from earlier tokens (n-gram speculation, Saxena 2023, prompt lookup decoding). The
// guess is the continuation of the most recent earlier occurrence of the last tokens.
//
//   4 5 6 7 8 1 4 5 6  ->  7 8 1 ...
#pragma once

#include <cstdint>
#include <span>
#include <vector>

namespace shoal::models {

/// Returns at most `most` tokens. Returns {} if the last kDraftMatch tokens have not occurred before.
std::vector<int32_t> draft_tokens(std::span<const int32_t> tokens, int64_t most);
inline constexpr int64_t kDraftMatch = 3;  ///< number of tokens that must be equal

}  // namespace shoal::models
