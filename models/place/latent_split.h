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
// Pure functions of their arguments; thread-safe.
#pragma once

#include <cstdint>
#include <string_view>

#include "machine/cost_model.h"
#include "meta/layout/partition.h"
#include "models/arch/hparams.h"

namespace shoal::models {

enum class LatentSplit : uint8_t { kAuto, kMirrored, kRows };
/// "auto", "mirrored", "rows".
std::string_view name_of(LatentSplit split);
/// Throws InvalidArgument that lists them.
LatentSplit parse_latent_split(std::string_view text);

struct LatentOptions {
  LatentSplit split = LatentSplit::kAuto;
  int64_t rows = 0;               ///< of the text that "auto" is to be good for
  int64_t tokens = 1;             ///< of its batches
  DType dtype = DType::kF16;      ///< of the cache
  machine::CostModel costs = {};  ///< of the devices
};

/// How it lies, and what that was compared with.
struct LatentChoice {
  LatentSplit split = LatentSplit::kMirrored;  ///< never kAuto
  int64_t parts = 1;                           ///< of the cache's rows; 1: mirrored
  bool chosen = false;                         ///< by the seconds below; else asked for, or there was no choice
  int64_t rows = 0, tokens = 1;
  double mirrored = 0, by_rows = 0;  ///< seconds of attention in all layers, with what has to be exchanged for it
};

/// Seconds of attention in a layer until the last device has done it, for `options.tokens` tokens that see
/// `options.rows` rows.
double seconds_mirrored(const LayerHparams& layer, const meta::Partition& heads, const LatentOptions& options);
/// `parts`: how the parts of the rows are divided over the devices.
double seconds_by_rows(const LayerHparams& layer, const meta::Partition& parts, const LatentOptions& options);

}  // namespace shoal::models
