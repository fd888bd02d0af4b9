// Propagation: from the layouts of the leaves to a layout for every node. One pass in graph order; each node's
// strategies follow from its sharding rule, the cheapest is taken. Total: every graph has a result, because
// "all sources mirrored, run on every rank" is always a strategy. A pure function.
//
// Strategies of a node:
//   split f by P   one factor of the rule is split the way a source already lies; sources that lie otherwise are
//                  redistributed. Summed and selected factors give Partial.
//   linear         a Partial source is passed through an op that is linear in it.
//   by expert      what experts that lie whole give is a partial sum, but each row is on one rank and 0 on the others:
//                  it goes through functions with f(0) = 0 and into the next experts as it is (routed.h).
//   mirrored       everything whole on every rank.
//   candidates     top_k and argmax of split rows: each rank selects, and only what it selected is gathered. Who looks
//                  up what was selected has it then.
//   on runs        reshape, slice, permute and concat map layouts exactly; set_rows keeps its cache's layout.
//   for the host   what only the host reads, or nodes for it select from, made from a mirrored weight, is divided as
//                  the split weights are: no device needs it whole, nor what is made of it element by element.
// Otherwise a split is never introduced where no source has one, so that a value made whole by a collective stays
// whole.
//
// Worked example, a feed-forward on 2 ranks (gate, up split on rows 1, down split on columns 0):
//   g = mul_mat(gate, x)   split m: split 0 [384:{0} 384:{1}]      nothing moves
//   u = mul_mat(up, x)     the same
//   h = glu(g, u)          split a: split 0 [384:{0} 384:{1}]      nothing moves
//   y = mul_mat(down, h)   split k: partial                        nothing moves
//   r = add(x, y)          mirrored: y is all-reduced              the layer's one collective
//   n = rms_norm(r)        mirrored                                nothing moves
// Had y been added to another partial sum z first, "linear" would have given a = add(y, z) partial: one reduction.
#pragma once

#include <functional>
#include <span>
#include <unordered_map>
#include <vector>

#include "graph/graph.h"
#include "meta/layout/layout.h"
#include "meta/plan/cost.h"
#include "meta/rules/rule.h"

namespace shoal::meta {

/// Layout of a tensor made outside the range: a leaf, or a node of an earlier range.
using LeafLayout = std::function<Layout(const Tensor&)>;

/// How one node runs: the layouts it needs of its sources, and what it gives.
struct NodeChoice {
  std::vector<Layout> sources;  ///< one for each source; mirrored where a source is absent
  Layout result;
  int factor = -1;             ///< factor of the op's rule that is split, or -1
  Partition partition;         ///< of that factor, or of axis 0 of the source
  bool by_candidates = false;  ///< each rank selects from its part of the rows (candidates.h)
  bool selected = false;       ///< what its ids have selected by candidates came along with them
  bool routed = false;         ///< takes partial sums whose rows lie on one rank each as they are (routed.h)
};

/// Of each node of the range.
using Propagation = std::unordered_map<const Tensor*, NodeChoice>;

/// An op for which `rules` has nothing runs whole; views and concat need no rule, set_rows must have one.
Propagation propagate(const GraphRange& range, int ranks, const LeafLayout& leaf_layout, const CostModel& model = {},
                      const RuleLookup& rules = rule_text);

/// The layout among `available` from which `target` is cheapest to reach: its index. Propagation and lowering both
/// use it, so that what was costed is what is built.
size_t cheapest_source(std::span<const Layout> available, const Layout& target, const Tensor& tensor, int ranks,
                       const CostModel& model);

/// A value for each tensor that a graph's nodes make or read: those of the graph by number, others by address. Values
/// are made at first use and do not move.
template <class Value>
class PerTensor {
 public:
  explicit PerTensor(const Graph& graph) : nodes_(graph.nodes().size()), inputs_(graph.inputs().size()) {}

  Value& operator[](const Tensor& tensor) {
    if (!tensor.is_leaf()) return nodes_[static_cast<size_t>(tensor.id)];
    return tensor.id >= 0 ? inputs_[static_cast<size_t>(tensor.id)] : others_[&tensor];
  }

 private:
  std::vector<Value> nodes_, inputs_;
  std::unordered_map<const Tensor*, Value> others_;
};

}  // namespace shoal::meta
