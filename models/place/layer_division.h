// How all groups of all layers of a model are divided, layer by layer (split_policy.h). Pure functions.
#pragma once

#include <cstdint>
#include <map>
#include <span>
#include <utility>
#include <vector>

#include "meta/layout/partition.h"
#include "models/arch/architecture.h"
#include "models/place/expert_split.h"

namespace shoal::models {

// Feed-forward columns and vocabulary rows are cut in multiples of this even where no block asks for it: shares that
// fill whole vector registers and cache lines.
inline constexpr int64_t kFeedForwardUnit = 32;
inline constexpr int64_t kVocabularyUnit = 32;

/// What the tensors of one group of one layer ask of its division.
struct GroupNeeds {
  int64_t block_unit = 1;  ///< members per unit so that no quantisation block is cut
  double bytes = 0.0;
};

using Needs = std::map<std::pair<int, CutGroup>, GroupNeeds>;
using Partitions = std::map<std::pair<int, CutGroup>, meta::Partition>;

/// Does it have something for each expert that may be cut by columns?
bool is_of_experts(const TensorSpec& spec);
/// As the tensor says, or by experts.
Cut cut_of(const TensorSpec& spec, ExpertSplit split);
Needs collect_needs(std::span<const ModelTensor> tensors, ExpertSplit split);
/// What the query heads of a layer ask of their division, and those of layers that read what it keeps, which are
/// divided alike; and the bytes that go with them.
GroupNeeds needs_of_heads(const Needs& needs, const Hparams& h, int layer);
/// Members that a group of `length` is divided in, `smallest` where blocks do not ask for more.
int64_t plain_unit(const GroupNeeds& needs, int64_t length, int64_t smallest);
/// Key heads; or channels, as vectors and cache lines have them.
int64_t state_unit(const RecurrentHparams& r);

/// All groups of all layers, and the bytes of each device.
struct Division {
  Partitions partitions;
  std::vector<double> bytes;
};
Division divide(const Hparams& h, std::span<const ModelTensor> tensors, std::span<const double> shares,
                ExpertSplit split);

}  // namespace shoal::models
