// The costs of changing a tensor's layout and of computing a node. Costs are in seconds of a machine's cost model.
// Costs are only compared: fewer and smaller collectives are preferred, then less duplicated work. All functions are
// pure.
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

/// True if the shard of every rank in layout `from` contains all elements of the same rank's shard in layout `to`. Then
/// nothing is sent.
bool is_local_conversion(const Layout& from, const Layout& to, int ranks);

}  // namespace shoal::meta
