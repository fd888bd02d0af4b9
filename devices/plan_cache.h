// Caches one plan per graph object. If several graphs alternate (such as prompt and generation, or target and draft
// model), each graph is planned only once. A full cache evicts the least recently used plan. The cache also evicts
// plans of destroyed graphs, and plans whose weights or caches were placed again. A cache belongs to one backend. Only
// the thread that queues the backend's work uses the cache.
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

/// Records the addresses of a graph's weights and caches, to detect whether one of these tensors was placed again.
class PersistentPlaces {
 public:
  explicit PersistentPlaces(const Graph& graph);
  /// Callers may call this function only while the graph exists.
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

  /// Returns the graph's plan. Makes the plan if it is not in the cache. Waits for queued work before it evicts a plan.
  /// Throws the exceptions of Backend::create_plan.
  GraphPlan& plan(Graph& graph);
  void clear();

  size_t size() const { return entries_.size(); }
  /// Number of plans made so far. A cache hit does not change this number.
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
  std::list<Entry> entries_;  ///< the most recently used plan is first
};

}  // namespace shoal
