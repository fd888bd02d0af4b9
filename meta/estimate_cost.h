// Parts of estimate.cpp: what nodes cost, with what is the same for all nodes of a device looked up once.
#pragma once

#include <array>

#include "meta/estimate.h"

namespace shoal::meta {

/// A device's products by dtype; nullptr: it has none.
struct ProductTable {
  explicit ProductTable(const DeviceModel& device);
  std::array<const ProductModel*, kDTypeCount> by_dtype{};
};

/// Does a device do anything for it, other than a collective?
bool is_executed(const Tensor& node);
NodeCost node_cost(const DeviceModel& device, const ProductTable& products, const Tensor& node, double kv_rows,
                   bool in_cache);

/// Bytes of weights and KV rows that runs of the graph read, each once, experts all of them: the next run takes others.
double working_set(const Graph& graph, double kv_rows);

}  // namespace shoal::meta
