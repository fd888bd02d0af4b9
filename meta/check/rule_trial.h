// One trial of the rule validator. For each rank, a reference computes the node from the rank's shards of the sources.
// The trial then joins the shards of the result, and compares the joined tensor with the result of the node on whole
// tensors.
#pragma once

#include <functional>
#include <string>
#include <unordered_map>
#include <vector>

#include "graph/graph.h"
#include "meta/layout/layout.h"

namespace shoal::meta {

/// The elements of a tensor in the order of a contiguous tensor.
using Values = std::vector<double>;
using TensorValues = std::unordered_map<const Tensor*, Values>;

/// "[2, 0, 1]": the indices of a flat element, without trailing axes of length 1.
std::string place_of(int64_t element, const Shape& shape);

/// The reference of a validation: computes a graph with one node.
struct Reference {
  TensorValues leaves;  ///< values of the leaves of the validated graph
  /// Returns the values of the node. The leaves are whole tensors or shards. Throws Error if it cannot compute the
  /// node.
  std::function<Values(const Graph& graph, const TensorValues& leaves)> evaluate;
  double f32_tolerance = 1e-9;  ///< allowed difference of f32 results, relative to 1 + |expected|
  bool finds_missing = true;    ///< whether claims that the rule does not make are tried
};

struct RuleTrial {
  int ranks = 0;
  std::vector<Layout> sources;  ///< layout of each source; ignored for absent sources
  Layout result;
  std::function<OpParams(int rank)> params;
  std::string name;  ///< name of the trial in messages
};

/// The node that trials compute, with values for its sources. All sources must be leaves.
class RuleSubject {
 public:
  RuleSubject(const Graph& graph, Reference reference);
  const Tensor& node() const { return node_; }
  /// Returns "" if the trial gives the same result as the node on whole tensors, otherwise a description of the error.
  std::string run(const RuleTrial& trial) const;

 private:
  Values run_rank(const RuleTrial& trial, int rank) const;
  /// Returns a rank's shard of source i. If the source is Partial, returns the rank's addend: a fraction of the value
  /// plus noise. The noise of all ranks adds up to zero. The fractions are 0.6 and 0.4 for two ranks, and 0.6, 0.3 and
  /// 0.1 for three ranks.
  Values local_values(const RuleTrial& trial, size_t i, int rank) const;

  const Tensor& node_;
  Reference reference_;
  Values values_;  ///< result on whole tensors
};

}  // namespace shoal::meta
