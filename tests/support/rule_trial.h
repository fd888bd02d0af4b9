// One trial of the rule validator. For each rank, the float64 reference computes the node from the rank's shards of the
// sources. The trial then joins the shards of the result, and compares the joined tensor with the result of the node on
// whole tensors.
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
  std::vector<meta::Layout> sources;  ///< layout of each source; ignored for absent sources
  meta::Layout result;
  std::function<OpParams(int rank)> params;
  std::string name;  ///< name of the trial in messages
};

/// The node that trials compute, with values for its sources. All sources must be leaves.
class RuleSubject {
 public:
  explicit RuleSubject(const Graph& graph);
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
  TensorValues leaves_, values_;
};

}  // namespace shoal::test
