// Partial sums in which each row lies on one rank: a device that has some of the experts gives zeros for the tokens
// that go to others (SelectParams). What is made of such a sum row by row, by functions that give 0 for 0, is one too,
// and the experts that take their rows from it have what they need. So nothing is reduced between the first products of
// experts that lie whole and the sum over those of a token.
//
//   g = mul_mat_id(gate, x, ids)    gate split 2 [4:{0} 4:{1}]: partial, rows by ids and [4:{0} 4:{1}]
//   u = mul_mat_id(up, x, ids)      the same
//   h = glu(g, u)                   act(0) * 0 = 0: the same, where a sum that is split otherwise had to be reduced
//   y = mul_mat_id(down, h, ids)    down split 2 [4:{0} 4:{1}]: each rank has the rows of its experts
//
// Pure functions.
#pragma once

#include <optional>
#include <span>

#include "meta/plan/propagate.h"

namespace shoal::meta {

/// Row i (over the axes above 0, in order) is 0 but on the rank whose part of `experts` has the one that ids[i] names.
struct RowRouting {
  const Tensor* ids = nullptr;  ///< reshapes left off
  Partition experts;
  SelectParams select;  ///< which expert an id names
  bool operator==(const RowRouting&) const = default;
};

/// nullptr where a source is absent or not routed.
using Routings = std::span<const RowRouting* const>;

/// True when rows of the result are 0 where those of source `index` are, whatever the others have there.
bool keeps_zeros(const Tensor& node, int index);

/// True when the node can take a routed source `index` as it is, as far as one source tells: the other one of a sum
/// must be routed, too.
bool passes_routed(const Tensor& node, int index, const RowRouting& routing);

/// All of the result is 0 where all of source `index` is, whatever the others have: rows need not stay apart for this.
/// Not said of sums, which without_zeros() of lower.cpp looks after.
bool keeps_all_zeros(const Tensor& node, int index);
/// Finds a product or rows for no id that there can be: i32 ones end before kNoId.
bool selects_nothing(const Tensor& node, const SelectParams& params);

/// Taking the routed sources as they are. nullopt where there are none, or the node needs their sum.
std::optional<NodeChoice> routed_strategy(const Tensor& node, const std::vector<Layout>& sources, Routings routings,
                                          const Rule* rule);

/// Which rank has which rows of a result; nullopt for one that is not routed.
std::optional<RowRouting> routing_of(const Tensor& node, const NodeChoice& choice, Routings routings, const Rule* rule);

}  // namespace shoal::meta
