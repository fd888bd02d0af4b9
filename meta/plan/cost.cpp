#include "meta/plan/cost.h"

#include <algorithm>

namespace shoal::meta {
bool is_weight(const Tensor& leaf) {
  const Tensor* original = leaf.copied_from != nullptr ? leaf.copied_from : &leaf;
  return original->is_leaf() && original->role == Role::kWeight;
}

bool is_local_conversion(const Layout& from, const Layout& to, int ranks) {
  if (from == to || from.is_mirrored()) return true;
  if (from.is_partial()) return false;
  if (to.is_partial()) return true;
  // Several holders (ranks with the whole tensor) may have computed their copies from shards of different shapes, so
  // the copies may be rounded differently. Mirrored means equal bits everywhere, so one holder has to send its copy.
  if (to.is_mirrored()) return false;
  if (const Owners* holders = from.holders()) {
    for (int rank = 0; rank < ranks; ++rank) {
      const bool wants = to.partition.local_length(rank) > 0;
      if (wants && std::find(holders->begin(), holders->end(), rank) == holders->end()) return false;
    }
    return true;
  }
  if (!to.is_split(from.axis)) return false;
  for (int rank = 0; rank < ranks; ++rank) {
    if (!from.partition.covers(to.partition, rank)) return false;
  }
  return true;
}

namespace {

/// True if every rank needs only one stretch of a mirrored tensor. The stretch is then a slice, which copies nothing.
bool is_slice(const Layout& from, const Layout& to, int ranks) {
  if (!from.is_mirrored() || !to.is_split()) return false;
  for (int rank = 0; rank < ranks; ++rank) {
    if (to.partition.stretches(rank) > 1) return false;
  }
  return true;
}

}  // namespace

double conversion_cost(const CostModel& model, const Tensor& tensor, const Layout& from, const Layout& to, int ranks) {
  if (from == to || is_slice(from, to, ranks)) return 0;
  const double bytes = static_cast<double>(tensor.bytes());
  const double local = model.copy(bytes);
  // The callback chooses the split axis of a weight. This axis determines how the products of the weight are divided.
  // If the same shards were described as a split on another axis, this description would override the choice.
  const bool renames = from.is_split() && to.is_split() && from.axis != to.axis;
  const bool moves_weight = is_weight(*tensor.storage());
  if (is_local_conversion(from, to, ranks) && !(moves_weight && renames)) return local;
  const auto kind = [&] {
    if (from.is_partial())
      return to.is_split() && to.partition.is_disjoint() ? Collective::kReduceScatter : Collective::kAllReduce;
    return to.is_split() && from.is_split() ? Collective::kAllToAll : Collective::kAllGather;
  };
  const double cost = local + model.collective(kind(), ranks, bytes);
  return moves_weight ? cost * model.weight_penalty : cost;
}

double gather_cost(const CostModel& model, double bytes, int ranks) {
  return model.copy(bytes) + model.collective(Collective::kAllGather, ranks, bytes);
}

double compute_cost(const CostModel& model, const Tensor& node, const Partition* parts) {
  double longest = 0;
  for (int kind = 0; kind < model.kinds(); ++kind) longest = std::max(longest, model.compute(node, kind));
  if (parts == nullptr || parts->length() == 0) return longest;
  if (model.kinds() == 1) {
    int64_t most = 0;
    for (int rank = 0; rank < parts->devices(); ++rank) most = std::max(most, parts->local_length(rank));
    return longest * static_cast<double>(most) / static_cast<double>(parts->length());
  }
  longest = 0;
  for (int rank = 0; rank < parts->devices(); ++rank) {
    const double part = static_cast<double>(parts->local_length(rank)) / static_cast<double>(parts->length());
    longest = std::max(longest, part * model.compute(node, model.kind_of(rank)));
  }
  return longest;
}

}  // namespace shoal::meta
