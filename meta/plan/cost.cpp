#include "meta/plan/cost.h"

#include <algorithm>

namespace shoal::meta {
namespace {

double collective(const CostModel& model, double phases, double bytes) {
  return phases * model.latency + bytes / model.link_bandwidth;
}

}  // namespace

bool is_weight(const Tensor& leaf) {
  const Tensor* original = leaf.copied_from != nullptr ? leaf.copied_from : &leaf;
  return original->is_leaf() && original->role == Role::kWeight;
}

bool is_local_conversion(const Layout& from, const Layout& to, int ranks) {
  if (from == to || from.is_mirrored()) return true;
  if (from.is_partial()) return false;
  if (to.is_partial()) return true;
  // Several holders may have computed their copies from shards of different shapes, which may round differently;
  // mirrored means the same bits everywhere, so that one of them has to send its own.
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

/// Every rank's part of a mirrored tensor is one stretch of it: a slice, which copies nothing.
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
  const double sent = bytes * (ranks - 1) / ranks;
  const double local = bytes / model.memory_bandwidth;
  // The axis on which a weight is split is the callback's word on how its products are divided: another name for the
  // same place would overrule it.
  const bool renames = from.is_split() && to.is_split() && from.axis != to.axis;
  const bool moves_weight = is_weight(*tensor.storage());
  if (is_local_conversion(from, to, ranks) && !(moves_weight && renames)) return local;
  const bool all_reduce = from.is_partial() && !(to.is_split() && to.partition.is_disjoint());
  const double cost =
      local + (all_reduce ? collective(model, 2, 2 * sent)
                          : collective(model, 1, to.is_split() && from.is_split() ? sent / ranks : sent));
  return moves_weight ? cost * model.weight_penalty : cost;
}

double gather_cost(const CostModel& model, double bytes, int ranks) {
  return bytes / model.memory_bandwidth + collective(model, 1, bytes * (ranks - 1) / ranks);
}

double compute_cost(const CostModel& model, const Tensor& node) {
  double bytes = static_cast<double>(node.bytes());
  for (const Tensor* source : node.src) {
    if (source != nullptr) bytes += static_cast<double>(source->bytes());
  }
  double operations = static_cast<double>(node.elements());
  if (node.op == Op::kMulMat || node.op == Op::kMulMatId)
    operations *= 2.0 * static_cast<double>(node.src[0]->shape[0]);
  if (node.op == Op::kAttention) operations *= 4.0 * static_cast<double>(node.src[1]->shape[1]);
  return std::max(operations / model.rate, bytes / model.memory_bandwidth);
}

}  // namespace shoal::meta
