// One trial of the rule validator: a node runs on several ranks, each on its shards of the sources, by the float64
// reference; the shards of the result are put together and compared with the node on whole tensors.
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
  std::vector<meta::Layout> sources;  ///< one for each source; ignored where it is absent
  meta::Layout result;
  std::function<OpParams(int rank)> params;
  std::string name;  ///< for messages
};

/// A node whose sources are leaves, with values for them.
class RuleSubject {
 public:
  explicit RuleSubject(const Graph& graph);
  const Tensor& node() const { return node_; }
  /// "" when the trial gives the result of the whole node, else what is wrong.
  std::string run(const RuleTrial& trial) const;

 private:
  Values run_rank(const RuleTrial& trial, int rank) const;
  /// A rank's shard of source i, or its addend: 0.6, 0.4 of the value (or 0.3 and 0.1) plus noise that cancels.
  Values local_values(const RuleTrial& trial, size_t i, int rank) const;

  const Tensor& node_;
  TensorValues leaves_, values_;
};

}  // namespace shoal::test
