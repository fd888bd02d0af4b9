// The rules of a graph's nodes, each found once: a rule is a function of the op, the parameters and the dtypes and
// shapes of node and sources, and a model repeats its layers. Belongs to one plan that is being made; the graph
// outlives it. One thread.
#pragma once

#include <cstdint>
#include <deque>
#include <optional>
#include <unordered_map>
#include <vector>

#include "graph/graph.h"
#include "meta/rules/rule.h"

namespace shoal::meta {

class RuleCache {
 public:
  RuleCache(const Graph& graph, const RuleLookup& rules) : rules_(rules), known_(graph.nodes().size()) {}
  /// nullptr when there is none.
  const Rule* find(const Tensor& node);

 private:
  struct Entry {
    const Tensor* node;  ///< the first one of its kind
    std::optional<Rule> rule;
  };

  const RuleLookup& rules_;
  std::vector<const Entry*> known_;  ///< by number of the node
  std::unordered_multimap<uint64_t, const Entry*> kinds_;
  std::deque<Entry> entries_;
};

}  // namespace shoal::meta
