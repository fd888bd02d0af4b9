// Costs of nodes on a device of a machine. Predictions and measurements share these formulas. Pure functions.
#pragma once

#include <array>

#include "graph/graph.h"
#include "machine/machine.h"

namespace shoal::machine {

/// Seconds of a node of a local graph on a device that has the domain to itself, and the bytes of weights and caches
/// that it reads from memory in that time. Views, collectives and empty nodes cost nothing.
struct NodeCost {
  double seconds = 0;
  double bytes = 0;
};
/// The cost of a node on a device. `kv_rows`: as in working_set(). `in_cache`: weights and KV rows are read from the
/// device's caches. Throws InvalidArgument if the device has no product figures for the dtype.
NodeCost node_cost(const DeviceModel& device, const Tensor& node, double kv_rows, bool in_cache);
/// Bytes of the weights that a product reads; 0 for other nodes. A mul_mat_id reads the average number of used experts.
double weight_bytes(const Tensor& node);
/// The average fraction of a mul_mat_id's experts that is used. Assumes that tokens choose at random: with E experts, T
/// tokens that select u experts each use E (1 - (1 - u / E)^T) experts.
double used_experts(const Tensor& experts, const Tensor& ids);

/// The product figures of a device by dtype; nullptr for dtypes without figures.
struct ProductTable {
  explicit ProductTable(const DeviceModel& device);
  std::array<const ProductModel*, kDTypeCount> by_dtype{};
};

/// Whether a device executes work for the node. False for collectives.
bool is_executed(const Tensor& node);
/// The same with a ProductTable of the device, which callers with many nodes make only once. `experts`: total number of
/// experts, if a mul_mat_id has only some of the experts. 0: the mul_mat_id has all experts.
NodeCost node_cost(const DeviceModel& device, const ProductTable& products, const Tensor& node, double kv_rows,
                   bool in_cache, int64_t experts = 0);
/// Seconds that a mul_mat_id with some of `experts` experts takes for one more (slot, token) pair. With one token,
/// every pair reads another expert. With many tokens, most experts are read anyway.
double pair_seconds(const DeviceModel& device, const ProductTable& products, const Tensor& node, bool in_cache,
                    int64_t experts);

/// Bytes of the weights and KV rows that a run of the graph reads, each counted once. All experts count, because the
/// next run uses other experts. `kv_rows`: rows of the KV cache that a query reads on average; 0: all rows.
double working_set(const Graph& graph, double kv_rows);

}  // namespace shoal::machine
