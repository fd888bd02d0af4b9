// Two modes of dividing a latent cache (models/arch/kv_cache.h) among the devices of a meta device. Each row of the
// cache holds the keys and values of all heads for one token.
//
//   mirrored   Every device stores all rows and attends with its own heads. This needs no further communication, but
//              each device stores and reads all rows.
//   rows       Every device stores 1 / n of the rows and attends to them with all heads. The queries are gathered
//              before attention, and the partial results are merged after it.
//
// So `rows` is better for long sequences. Example: DeepSeek V3 stores 576 numbers (1152 bytes in f16) per token and
// layer, and each of 8 devices reads 1/8 of them. In return, 295 KB of queries and 263 KB of results of the 128 heads
// are exchanged per token and layer.
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
