// Plans kept by graph identity, so that graphs that alternate (prompt and generation, target and draft model) are
// planned once each. The least recently used plan goes when the cache is full; plans of graphs that are gone go too.
// A plan also goes when a weight or cache of its graph has been placed anew since. Belongs to one backend and is used
// by the thread that queues work on it.
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

/// Where the weights and caches of a graph lie, to notice later that one has been placed anew.
class PersistentPlaces {
 public:
  explicit PersistentPlaces(const Graph& graph);
  /// Only while the graph is there.
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

  /// The graph's plan, made now if it is not kept. Throws what Backend::create_plan throws; waits for queued work
  /// when a plan has to go.
  GraphPlan& plan(Graph& graph);
  void clear();

  size_t size() const { return entries_.size(); }
  /// Plans made so far: stays the same while graphs are found in the cache.
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
