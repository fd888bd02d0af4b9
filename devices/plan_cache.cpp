#include "devices/plan_cache.h"

#include <algorithm>

#include "devices/backend.h"

namespace shoal {

PlanCache::PlanCache(Backend& backend, size_t capacity) : backend_(backend), capacity_(std::max<size_t>(capacity, 1)) {}

PlanCache::~PlanCache() = default;

GraphPlan& PlanCache::plan(Graph& graph) {
  const auto found =
      std::find_if(entries_.begin(), entries_.end(), [&](const Entry& entry) { return entry.uid == graph.uid(); });
  if (found != entries_.end()) {
    entries_.splice(entries_.begin(), entries_, found);
    return *entries_.front().plan;
  }
  make_room();
  auto plan = backend_.create_plan(graph);
  ++made_;
  entries_.push_front({graph.uid(), graph.life(), std::move(plan)});
  return *entries_.front().plan;
}

void PlanCache::clear() { entries_.clear(); }

void PlanCache::make_room() {
  const bool gone = std::any_of(entries_.begin(), entries_.end(), [](const Entry& e) { return e.life.expired(); });
  if (!gone && entries_.size() < capacity_) return;
  backend_.synchronize();  // a plan that goes may still be running
  entries_.remove_if([](const Entry& entry) { return entry.life.expired(); });
  while (entries_.size() >= capacity_) entries_.pop_back();
}

}  // namespace shoal
