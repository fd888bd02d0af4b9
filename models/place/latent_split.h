// Two modes of dividing a latent cache (models/arch/kv_cache.h) among the devices of a meta device. Each row of the
// cache holds the keys and values of all heads for one token.
//
//   mirrored   Every device stores all rows and attends with its own heads. No further communication is needed, but
//              each device stores and reads all rows.
//   rows       Each of n devices stores 1 / n of the rows and attends to them with all heads. The devices gather the
//              queries before attention, and merge the partial results after attention.
//
// `rows` reads fewer bytes per device, so this mode is better for long sequences. Example: DeepSeek V3 stores 576
// numbers (1152 bytes in f16) per token and layer, and each of 8 devices reads 1/8 of them. In return, the devices
// exchange 295 KB of queries and 263 KB of results per token and layer, for 128 heads.
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
