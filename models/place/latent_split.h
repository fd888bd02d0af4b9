// How a latent cache (models/arch/kv_cache.h), whose rows are keys and values of all heads, lies on the devices of a
// meta device:
//
//   mirrored   every device has all rows and attends with its own heads: nothing more to communicate, but all rows are
//              read, and kept, on each device
//   rows       every device has a part of the rows and attends to them with all heads: it reads and keeps 1 / n of
//              them, but queries have to be gathered before and what the parts give merged behind
//
// So rows are better for long texts. DeepSeek V3 makes 576 numbers a token and layer, 1152 bytes in f16, of which 8
// devices read 1 / 8, for 128 heads that have to meet: 295 KB of queries and 263 KB of results for each token.
//
// tuning/choose/ways.h compares them.
#pragma once

#include <cstdint>
#include <string_view>

namespace shoal::models {

enum class LatentSplit : uint8_t { kMirrored, kRows };
/// "mirrored", "rows".
constexpr std::string_view name_of(LatentSplit split) {
  return split == LatentSplit::kRows ? "rows" : "mirrored";
}

}  // namespace shoal::models
