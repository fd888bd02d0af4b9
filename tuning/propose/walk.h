// Follows the split of one factor through a graph. The walk starts at a node whose factor is split by a partition. Each
// operand and the result of the node get a layout. The walk then visits the producer and the users of each such tensor.
// The walk stops at sums (the result is partial), at axes that an op needs whole, and at leaves. The weights and caches
// that the walk reaches can be split together without a redistribution.
//
//   y = mul_mat(down, relu(mul_mat(up, x))), start: factor m of the first product, 6 elements as 3:{0} 3:{1}
//   up is split on axis 1 as 3:{0} 3:{1}; the product and relu on axis 0; down on axis 0; y is a sum, so the walk stops
//
// The slices of a fused tensor are collected. After all slices are known, the fused tensor is split in segments:
// attention with heads 8:{0} 8:{1} and KV heads 2:{0} 2:{1} gives the fused weight the partition of Q|K|V.
//
// Not thread-safe. The graph must outlive the objects.
#pragma once

#include <map>
#include <unordered_map>
#include <vector>

#include "graph/graph.h"
#include "meta/layout/layout.h"
#include "meta/rules/rule_cache.h"

namespace shoal::tuning {

/// The rules of a graph's nodes and the users of its tensors.
class GraphIndex {
 public:
  GraphIndex(const Graph& graph, const meta::RuleLookup& rules);
  /// Returns nullptr for views, concat, leaves and ops without a rule.
  const meta::Rule* rule(const Tensor& node);
  struct User {
    const Tensor* node;
    int source;
  };
  const std::vector<User>& users(const Tensor& tensor) const;
  /// The products of experts and the lookups in leaves that use the same ids as `node`, including `node`. Empty if no
  /// product of experts uses these ids.
  const std::vector<const Tensor*>& same_ids(const Tensor& node) const;
  const Graph& graph() const { return graph_; }

 private:
  const Graph& graph_;
  meta::RuleCache rules_;
  std::unordered_map<const Tensor*, std::vector<User>> users_;
  std::unordered_map<const Tensor*, std::vector<const Tensor*>> by_ids_;
};

class Walk {
 public:
  /// With `lenient`, a cut that an op or a view cannot express ends the walk in this direction. Otherwise, such a cut
  /// makes the walk fail.
  Walk(GraphIndex& index, bool lenient) : index_(index), lenient_(lenient) {}
  /// Returns false if the partition does not fit, or if a tensor would need two different layouts.
  bool run(const Tensor& node, const meta::FactorSplit& split);

  /// Split weights and caches, in the order of the walk.
  std::vector<std::pair<const Tensor*, meta::Layout>> leaves() const;
  const std::map<const Tensor*, meta::FactorSplit>& nodes() const { return nodes_; }

 private:
  struct Piece {
    int64_t begin;
    meta::Partition partition;
  };
  /// The known pieces of one axis of a fused tensor, in ascending order.
  struct Fused {
    const Tensor* tensor;
    int axis;
    std::vector<Piece> pieces;
  };

  bool drain();
  bool split_node(const Tensor& node, const meta::Rule& rule, meta::FactorSplit split);
  bool split_same_ids(const Tensor& node, const meta::FactorSplit& split);
  bool assign(const Tensor& tensor, const meta::Layout& layout);
  bool assign(const Tensor& tensor, const std::optional<meta::Layout>& layout) {
    return layout ? assign(tensor, *layout) : lenient_;
  }
  bool backward(const Tensor& node, const meta::Layout& layout);
  bool backward_slice(const Tensor& node, const meta::Layout& layout);
  bool backward_concat(const Tensor& node, const meta::Layout& layout);
  bool forward(const meta::Layout& layout, const GraphIndex::User& user);
  bool add_piece(const Tensor& tensor, int axis, Piece piece);
  bool close(size_t number, bool fill);

  GraphIndex& index_;
  bool lenient_;
  std::map<const Tensor*, meta::FactorSplit> nodes_;
  std::unordered_map<const Tensor*, meta::Layout> layouts_;
  std::vector<const Tensor*> order_;  ///< tensors with a layout; those from next_ on have not been visited
  size_t next_ = 0;
  std::vector<Fused> fused_;                 ///< tensors without a layout
  std::vector<meta::Partition> partitions_;  ///< partitions of factors
};

}  // namespace shoal::tuning
