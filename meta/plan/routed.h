// Routed sums: partial sums in which each row is on one rank and 0 on the other ranks. A device with some of the
// experts computes zeros for tokens of other experts (SelectParams). If f(0) = 0 and f works row by row, f of a routed
// sum is also routed. Each rank then has the rows that its next experts need. So with whole experts on each rank,
// nothing is reduced between the first products and the sum over the experts of a token.
//
//   g = mul_mat_id(gate, x, ids)    gate split 2 [4:{0} 4:{1}]: partial, rows by ids and [4:{0} 4:{1}]
//   u = mul_mat_id(up, x, ids)      the same as g
//   h = glu(g, u)                   act(0) * 0 = 0, so h is also routed; unrouted partial sums would be reduced here
//   y = mul_mat_id(down, h, ids)    down split 2 [4:{0} 4:{1}]: each rank has the rows of its experts
//
// All functions are pure.
#pragma once

#include <optional>
#include <span>

#include "meta/plan/propagate.h"

namespace shoal::meta {

/// Row i is 0 on all ranks except the rank whose part of `experts` contains the expert of ids[i]. Rows are numbered in
/// order over the axes above 0.
struct RowRouting {
  const Tensor* ids = nullptr;  ///< the ids before any reshape
  Partition experts;
  SelectParams select;  ///< maps ids to experts
  bool operator==(const RowRouting&) const = default;
};

/// One routing per source; nullptr if the source is absent or not routed.
using Routings = std::span<const RowRouting* const>;

/// True if a row of the result is 0 whenever this row of source `index` is 0. The other sources may contain any values.
bool keeps_zeros(const Tensor& node, int index);

/// True if the node can take a routed source `index` without reducing this source. The other source of a sum must also
/// be routed. This function does not check the other source.
bool passes_routed(const Tensor& node, int index, const RowRouting& routing);

/// True if the result is all 0 when source `index` is all 0. The other sources may contain any values. Unlike
/// keeps_zeros(), this function allows ops that mix rows. Returns false for additions. without_zeros() in lower.cpp
/// handles additions: if one operand is zero, the other operand replaces the addition.
bool keeps_all_zeros(const Tensor& node, int index);
/// True if the node's index ranges contain no possible id. Possible i32 ids are less than kNoId.
bool selects_nothing(const Tensor& node, const SelectParams& params);

/// Returns the strategy that does not reduce routed sources, or nullopt if no source is routed or the node needs the
/// complete sum.
std::optional<NodeChoice> routed_strategy(const Tensor& node, const std::vector<Layout>& sources, Routings routings,
                                          const Rule* rule);

/// The routing of the result's rows; nullopt if the result is not routed.
std::optional<RowRouting> routing_of(const Tensor& node, const NodeChoice& choice, Routings routings, const Rule* rule);

}  // namespace shoal::meta
