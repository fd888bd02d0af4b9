// What nodes cost on a device of a machine: the one set of formulas that predictions and measurements share. Pure
// functions.
#pragma once

#include <array>

#include "graph/graph.h"
#include "machine/machine.h"

namespace shoal::machine {

/// Seconds of a node of a local graph on a device that has the domain to itself, and the bytes of weights and caches
/// that it reads from memory meanwhile. Views, collectives and nodes without elements cost nothing.
struct NodeCost {
  double seconds = 0;
  double bytes = 0;
};
/// `in_cache`: weights and KV rows are read from the caches. Throws InvalidArgument when the device knows no product of
/// the dtype.
NodeCost node_cost(const DeviceModel& device, const Tensor& node, double kv_rows, bool in_cache);
/// Bytes of weights that a product reads, of experts those that are used on the average; 0 for other nodes.
double weight_bytes(const Tensor& node);
/// The part of a mul_mat_id's experts that is used on the average. Tokens choose as if by lot: of E experts, T tokens
/// that take u each use E (1 - (1 - u / E)^T).
double used_experts(const Tensor& experts, const Tensor& ids);

/// A device's products by dtype; nullptr: it has none.
struct ProductTable {
  explicit ProductTable(const DeviceModel& device);
  std::array<const ProductModel*, kDTypeCount> by_dtype{};
};

/// Does a device do anything for it, other than a collective?
bool is_executed(const Tensor& node);
/// node_cost() with what is the same for all nodes of a device looked up once. `experts`: among how many tokens choose,
/// where a mul_mat_id has a part of them; 0: it has all.
NodeCost node_cost(const DeviceModel& device, const ProductTable& products, const Tensor& node, double kv_rows,
                   bool in_cache, int64_t experts = 0);
/// Seconds that one more (slot, token) pair takes a mul_mat_id which has a part of `experts`: the experts of a single
/// token are all read for it, most of those of many tokens have been read anyway.
double pair_seconds(const DeviceModel& device, const ProductTable& products, const Tensor& node, bool in_cache,
                    int64_t experts);

/// Bytes of weights and KV rows that runs of the graph read, each once, experts all of them: the next run takes others.
double working_set(const Graph& graph, double kv_rows);

}  // namespace shoal::machine
