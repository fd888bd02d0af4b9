// Propagation: derives a layout for every node from the layouts of the leaves. Propagation visits the nodes once, in
// graph order. The strategies of a node follow from its sharding rule, and the cheapest strategy is chosen. "All
// sources mirrored, run on every rank" is a strategy of every op except cache writes. They keep the cache's layout.
// Propagation is a pure function.
//
// Strategies of a node:
//   split f by P   splits one factor of the rule in the same way as a source; sources with other layouts are
//                  redistributed. Summed and selected factors give Partial.
//   linear         passes a Partial source through an op that is linear in this source.
//   by expert      takes partial sums of whole experts without reducing them. Each row of such a sum is on one rank and
//                  0 on the other ranks. Functions with f(0) = 0 and products of the next experts keep this property
//                  (routed.h).
//   mirrored       every rank computes the whole node.
//   candidates     top_k and argmax of split rows: each rank selects, and only the selected values are gathered. A node
//                  that looks up the selected values uses the gathered values.
//   on runs        layouts of reshape, slice, permute and concat are exact; a cache write keeps its cache's layout.
//   as wanted      for a node with a constraint (constraints.h): computes the result in the wanted layout, if the rule
//                  can split the node in this way. Other strategies convert their result to this layout. A reshard has
//                  only this strategy.
//   for the host   divides a result of a mirrored weight in the same way as the split weights. Only the host, or a
//                  selection for the host, may read this result, so no device needs the whole result.
// All other strategies split a node only if one of its sources is split. So a value that a collective has mirrored
// remains mirrored.
//
// Worked example, a feed-forward on 2 ranks (gate and up are split by rows, axis 1; down is split by columns, axis 0):
//   g = mul_mat(gate, x)   split m: split 0 [384:{0} 384:{1}]      no collective
//   u = mul_mat(up, x)     split m: split 0 [384:{0} 384:{1}]      no collective
//   h = glu(g, u)          split a: split 0 [384:{0} 384:{1}]      no collective
//   y = mul_mat(down, h)   split k: partial                        no collective
//   r = add(x, y)          mirrored: y is all-reduced              the layer's one collective
//   n = rms_norm(r)        mirrored                                no collective
// If the graph first added y to another partial sum z, "linear" would make add(y, z) partial. One reduction would then
// be enough for both sums.
#pragma once

#include <functional>
#include <optional>
#include <span>
#include <unordered_map>
#include <vector>

#include "graph/graph.h"
#include "meta/layout/layout.h"
#include "meta/plan/constraints.h"
#include "meta/plan/cost.h"
#include "meta/rules/rule.h"

namespace shoal::meta {

/// Layout of a tensor made outside the range: a leaf, or a node of an earlier range.
using LeafLayout = std::function<Layout(const Tensor&)>;

/// The strategy for one node: the layouts to which its sources are converted, and the layout of its result.
struct NodeChoice {
  std::vector<Layout> sources;        ///< one for each source; mirrored if a source is absent
  Layout result;                      ///< the layout that the op computes
  int factor = -1;                    ///< the split factor of the op's rule, or -1
  Partition partition;                ///< partition of the factor, or of axis 0 of the source
  bool by_candidates = false;         ///< each rank selects from its part of the rows (candidates.h)
  bool selected = false;              ///< reads the gathered values of the candidates
  bool routed = false;                ///< takes routed sums without reducing them (routed.h)
  std::optional<Layout> wanted = {};  ///< the layout to which the result is converted because of a constraint

  /// The layout in which readers get the value.
  const Layout& layout() const { return wanted ? *wanted : result; }
};

/// The choice for each node of the range, and the layout of each input with a constraint (as `result`).
using Propagation = std::unordered_map<const Tensor*, NodeChoice>;

/// An op without a rule in `rules` runs whole on every rank. Views and concat need no rule. Cache writes must have one.
/// Throws InvalidArgument if a required layout contradicts the layout of a cache or the text of a reshard.
Propagation propagate(const GraphRange& range, int ranks, const LeafLayout& leaf_layout, const CostModel& model = {},
                      const RuleLookup& rules = rule_text, std::span<const ConstrainedTensor> constraints = {});

/// Index of the layout in `available` from which a conversion to `target` is cheapest. Propagation and lowering both
/// use this function. So lowering builds exactly the conversion whose cost was used for the choice.
size_t cheapest_source(std::span<const Layout> available, const Layout& target, const Tensor& tensor, int ranks,
                       const CostModel& model);

/// One value for each tensor that a graph's nodes make or read. Tensors of the graph are looked up by number, and all
/// other tensors by address. Values are created at first use and do not move.
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
