// Caches the rules of a graph's nodes. A rule depends only on the op, the parameters, and the dtypes and shapes of the
// node and its sources. So the equal layers of a model share one lookup. Each plan is made with its own cache. The
// graph must outlive the cache. Not thread-safe.
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
  /// Returns nullptr if the node has no rule.
  const Rule* find(const Tensor& node);

 private:
  struct Entry {
    const Tensor* node;  ///< the first node with this rule
    std::optional<Rule> rule;
  };

  const RuleLookup& rules_;
  std::vector<const Entry*> known_;  ///< indexed by node number
  std::unordered_multimap<uint64_t, const Entry*> kinds_;
  std::deque<Entry> entries_;
};

}  // namespace shoal::meta
