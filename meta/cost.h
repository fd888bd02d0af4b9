// What changing a tensor's layout costs, and what computing a node costs, in seconds of a rough machine model.
// Only comparisons matter: fewer and smaller collectives win, then less duplicated work. Pure functions.
//
//   f32 [4096, 1] Partial -> Mirrored on 4 ranks, latency 10 us, 10 GB/s:
//   2 * 10 us + 2 * (3/4) * 16384 B / 10 GB/s = 22.5 us   (all_reduce = reduce_scatter + all_gather)
#pragma once

#include "graph/tensor.h"
#include "meta/layout.h"

namespace shoal::meta {

struct CostModel {
  double latency = 10e-6;          ///< seconds per phase of a collective
  double link_bandwidth = 10e9;    ///< bytes/s between ranks
  double memory_bandwidth = 50e9;  ///< bytes/s of a rank's own memory
  double rate = 200e9;             ///< scalar operations/s of a rank
  /// Factor on moving a weight. Whoever split it did so because it should not be on every device: it moves only where
  /// nothing else is legal.
  double weight_penalty = 1000.0;
};

/// Seconds to turn `tensor` from one layout into another; 0 when they are equal or a view does it.
double conversion_cost(const CostModel& model, const Tensor& tensor, const Layout& from, const Layout& to, int ranks);

/// Seconds to gather so many bytes, of which every rank has its share.
double gather_cost(const CostModel& model, double bytes, int ranks);

/// A weight that lives on the mesh, or an input that one is copied into (Tensor::copied_from).
bool is_weight(const Tensor& leaf);

/// Seconds of the node on one device that does all of it.
double compute_cost(const CostModel& model, const Tensor& node);

/// True when every rank finds its part of `to` in its own part of `from`, so that nothing is sent.
bool is_local_conversion(const Layout& from, const Layout& to, int ranks);

}  // namespace shoal::meta
