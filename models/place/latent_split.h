// Two modes of dividing a latent cache (models/arch/kv_cache.h) among the devices of a meta device. Each row of the
// cache holds the keys and values of all heads for one token.
//
//   mirrored   Every device stores all rows and attends with its own heads. This mode adds no communication, but each
//              device stores and reads all rows.
//   rows       Each of n devices stores 1 / n of the rows and attends to them with all heads. The devices gather the
//              queries before attention, and merge the partial results after attention.
//
// With `rows`, each device reads fewer bytes than with `mirrored`, so `rows` is better for long sequences. Example:
// DeepSeek V3 stores one row of 576 numbers (1152 bytes in f16) per token and layer. Each of 8 devices reads 1/8 of the
// rows. With 128 heads, the devices then exchange 295 KB of queries and 263 KB of results per token and layer.
//
// tuning/choose/ways.h compares both modes.
#pragma once

#include <cstdint>
#include <string_view>

namespace shoal::models {

enum class LatentSplit : uint8_t { kMirrored, kRows };
/// Returns "mirrored" or "rows".
constexpr std::string_view name_of(LatentSplit split) {
  return split == LatentSplit::kRows ? "rows" : "mirrored";
}

}  // namespace shoal::models
