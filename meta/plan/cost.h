// What changing a tensor's layout costs, and what computing a node costs, in seconds of a machine's cost model.
// Only comparisons matter: fewer and smaller collectives win, then less duplicated work. Pure functions.
//
//   f32 [4096, 1] Partial -> Mirrored on 4 ranks, latency 10 us, 10 GB/s:
//   2 * 10 us + 2 * (3/4) * 16384 B / 10 GB/s = 22.5 us   (all_reduce = reduce_scatter + all_gather)
#pragma once

#include "graph/tensor.h"
#include "machine/cost_model.h"
#include "meta/layout/layout.h"

namespace shoal::meta {

using machine::CostModel;

/// Seconds to turn `tensor` from one layout into another; 0 when they are equal or a view does it.
double conversion_cost(const CostModel& model, const Tensor& tensor, const Layout& from, const Layout& to, int ranks);

/// Seconds to gather these bytes, of which every rank has its share.
double gather_cost(const CostModel& model, double bytes, int ranks);

/// A weight that lives on the mesh, or an input that one is copied into (Tensor::copied_from).
bool is_weight(const Tensor& leaf);

/// Seconds until every rank has done its part of the node: as much as it has of the partition, or all of it where there
/// is none (nullptr, or of length 0).
double compute_cost(const CostModel& model, const Tensor& node, const Partition* parts);

/// True when every rank finds its part of `to` in its own part of `from`, so that nothing is sent.
bool is_local_conversion(const Layout& from, const Layout& to, int ranks);

}  // namespace shoal::meta
