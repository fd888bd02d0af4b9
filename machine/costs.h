// Costs of nodes on a device of a machine. Predictions and measurements use the same formulas. Pure functions.
#pragma once

#include <array>

#include "graph/graph.h"
#include "machine/machine.h"

namespace shoal::machine {

/// Cost of a node of a local graph while the other devices of the domain are idle. `seconds` is the time of the node.
/// `bytes` is the number of bytes of weights and caches that the node reads from memory. Views, collectives and empty
/// nodes cost nothing.
struct NodeCost {
  double seconds = 0;
  double bytes = 0;
};
/// Returns the cost of a node on a device. `kv_rows` has the same meaning as in working_set(). If `in_cache` is true,
/// weights and KV rows are read from the device's caches. Throws InvalidArgument if the device has no product model for
/// the dtype of the node's weights.
NodeCost node_cost(const DeviceModel& device, const Tensor& node, double kv_rows, bool in_cache);
/// Average number of weight bytes that a product or convolution reads; 0 for other nodes. A mul_mat_id reads the
/// fraction used_experts() of its weights.
double weight_bytes(const Tensor& node);
/// Average fraction of the experts that a mul_mat_id uses. Assumes that tokens choose experts at random: if T tokens
/// select u of E experts each, the tokens use E (1 - (1 - u / E)^T) experts on average.
double used_experts(const Tensor& experts, const Tensor& ids);

/// The product models of a device by dtype; nullptr for dtypes without a model.
struct ProductTable {
  explicit ProductTable(const DeviceModel& device);
  std::array<const ProductModel*, kDTypeCount> by_dtype{};
};

/// Whether a device executes work for the node. False for views, collectives and empty nodes.
bool is_executed(const Tensor& node);
/// Like node_cost() above, but takes a ProductTable of the device. Callers with many nodes make the table only once. If
/// the mul_mat_id has only some of the experts, `experts` is the total number of experts. If the mul_mat_id has all
/// experts, `experts` may be 0.
NodeCost node_cost(const DeviceModel& device, const ProductTable& products, const Tensor& node, double kv_rows,
                   bool in_cache, int64_t experts = 0);
/// Seconds that one more (token, selected expert) pair adds to the time of a mul_mat_id. `experts` has the same meaning
/// as in node_cost(). With one token, every pair reads a different expert. With many tokens, most experts are read even
/// without the new pair.
double pair_seconds(const DeviceModel& device, const ProductTable& products, const Tensor& node, bool in_cache,
                    int64_t experts);

/// Bytes of the weights and KV rows that a run of the graph reads. Each weight and each row counts once. All experts
/// count, because the next run uses other experts. `kv_rows` is the average number of rows of the KV cache that a query
/// reads; 0: all rows.
double working_set(const Graph& graph, double kv_rows);

}  // namespace shoal::machine
