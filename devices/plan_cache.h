// Caches plans by graph identity, so that alternating graphs (prompt and generation, target and draft model) are
// planned once each. A full cache evicts the least recently used plan. It also evicts plans of destroyed graphs, and
// plans whose weights or caches were placed again. Belongs to one backend and is used by the thread that queues its
// work.
#pragma once

#include <cstddef>
#include <cstdint>
#include <list>
#include <memory>
#include <vector>

#include "graph/graph.h"

namespace shoal {

class Backend;
class GraphPlan;

/// Addresses of a graph's weights and caches, to notice when one of them is placed again.
class PersistentPlaces {
 public:
  explicit PersistentPlaces(const Graph& graph);
  /// Must be called only while the graph exists.
  bool unchanged() const { return hash() == hash_; }

 private:
  uint64_t hash() const;

  std::vector<const Tensor*> leaves_;
  uint64_t hash_;
};

class PlanCache {
 public:
  PlanCache(Backend& backend, size_t capacity);
  ~PlanCache();

  /// Returns the graph's plan, made now if it is not in the cache. Waits for queued work before it evicts a plan.
  /// Throws the exceptions of Backend::create_plan.
  GraphPlan& plan(Graph& graph);
  void clear();

  size_t size() const { return entries_.size(); }
  /// Number of plans made so far. It does not grow when the cache contains the graph.
  uint64_t made() const { return made_; }

 private:
  struct Entry {
    uint64_t uid;
    std::weak_ptr<const void> life;
    PersistentPlaces places;
    std::unique_ptr<GraphPlan> plan;
  };

  void make_room();

  Backend& backend_;
  size_t capacity_;
  uint64_t made_ = 0;
  std::list<Entry> entries_;  ///< most recently used first
};

}  // namespace shoal
