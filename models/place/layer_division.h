// Divides the members of each CutGroup among the devices, layer by layer (split_policy.h). Pure functions.
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

// Feed-forward columns and vocabulary rows are cut in multiples of 32, even in unquantised tensors. The columns or rows
// of a device then fill whole vector registers and cache lines.
inline constexpr int64_t kFeedForwardUnit = 32;
inline constexpr int64_t kVocabularyUnit = 32;

/// Requirements for dividing one group of one layer, combined over all tensors of the group.
struct GroupNeeds {
  int64_t block_unit = 1;  ///< smallest number of members per unit that keeps quantisation blocks whole
  double bytes = 0.0;
};

using Needs = std::map<std::pair<int, CutGroup>, GroupNeeds>;
using Partitions = std::map<std::pair<int, CutGroup>, meta::Partition>;

/// Whether the tensor belongs to routed experts and can be cut by columns.
bool is_of_experts(const TensorSpec& spec);
/// For routed experts with kWhole, returns a cut along the expert axis. For all other tensors, returns spec.cut.
Cut cut_of(const TensorSpec& spec, ExpertSplit split);
Needs collect_needs(std::span<const ModelTensor> tensors, ExpertSplit split);
/// Combined requirements of the query heads in `layer` and in all later layers that read the KV cache of `layer`. All
/// these layers are divided in the same way. The bytes include the KV heads.
GroupNeeds needs_of_heads(const Needs& needs, const Hparams& h, int layer);
/// Number of members per unit in a group of `length` members: usually the lcm of `smallest` and needs.block_unit, but
/// at most `length`.
int64_t plain_unit(const GroupNeeds& needs, int64_t length, int64_t smallest);
/// Number of members per unit in a recurrent layer: one key head, or kFeedForwardUnit channels if the layer has no
/// value heads.
int64_t state_unit(const RecurrentHparams& r);

/// Partitions of all groups in all layers, and the bytes of split weights on each device.
struct Division {
  Partitions partitions;
  std::vector<double> bytes;
};
Division divide(const Hparams& h, std::span<const ModelTensor> tensors, std::span<const double> shares,
                ExpertSplit split);

}  // namespace shoal::models
