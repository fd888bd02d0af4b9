// One trial of the rule validator. The float64 reference computes a node for several ranks, each from the rank's shards
// of the sources. The shards of the result are joined and compared with the node's result on whole tensors.
#pragma once

#include <functional>
#include <string>
#include <vector>

#include "graph/graph.h"
#include "meta/layout/layout.h"
#include "tests/support/tensors.h"

namespace shoal::test {

struct RuleTrial {
  int ranks = 0;
  std::vector<meta::Layout> sources;  ///< one per source; ignored for absent sources
  meta::Layout result;
  std::function<OpParams(int rank)> params;
  std::string name;  ///< name in messages
};

/// A node whose sources are leaves, with values for them.
class RuleSubject {
 public:
  explicit RuleSubject(const Graph& graph);
  const Tensor& node() const { return node_; }
  /// "" if the trial gives the result of the node on whole tensors, otherwise a description of the error.
  std::string run(const RuleTrial& trial) const;

 private:
  Values run_rank(const RuleTrial& trial, int rank) const;
  /// A rank's shard of source i. If the source is Partial, the rank's addend: 0.6 or 0.4 (with three ranks 0.6, 0.3 or
  /// 0.1) of the value, plus noise that cancels in the sum.
  Values local_values(const RuleTrial& trial, size_t i, int rank) const;

  const Tensor& node_;
  TensorValues leaves_, values_;
};

}  // namespace shoal::test
