// The costs of changing a tensor's layout and of computing a node. Each cost is a number of seconds that the cost model
// of a machine predicts. Callers only compare costs. The comparison prefers fewer and smaller collectives, and then
// less duplicated work. All functions are pure.
//
//   f32 [4096, 1] Partial -> Mirrored on 4 ranks, latency 10 us, 10 GB/s:
//   2 * 10 us + 2 * (3/4) * 16384 B / 10 GB/s = 22.5 us   (all_reduce = reduce_scatter + all_gather)
#pragma once

#include "graph/tensor.h"
#include "machine/cost_model.h"
#include "meta/layout/layout.h"

namespace shoal::meta {

using machine::CostModel;

/// Seconds to convert `tensor` from one layout to the other; 0 if the layouts are equal or a view is enough.
double conversion_cost(const CostModel& model, const Tensor& tensor, const Layout& from, const Layout& to, int ranks);

/// Seconds to all-gather `bytes` bytes, if every rank has a share of the bytes.
double gather_cost(const CostModel& model, double bytes, int ranks);

/// True for a weight on the mesh, and for an input into which a weight is copied (Tensor::copied_from).
bool is_weight(const Tensor& leaf);

/// Seconds until every rank has computed its part of the node. Without a partition (nullptr, or length 0) every rank
/// computes the whole node.
double compute_cost(const CostModel& model, const Tensor& node, const Partition* parts);

/// True if the shard of each rank in layout `from` contains this rank's shard in layout `to`. Then no data is sent.
bool is_local_conversion(const Layout& from, const Layout& to, int ranks);

}  // namespace shoal::meta
