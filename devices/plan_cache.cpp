#include "devices/plan_cache.h"

#include <algorithm>

#include "devices/backend.h"

namespace shoal {

PersistentPlaces::PersistentPlaces(const Graph& graph) {
  for (const Tensor* leaf : graph.leaves()) {
    if (leaf->is_persistent()) leaves_.push_back(leaf);
  }
  hash_ = hash();
}

uint64_t PersistentPlaces::hash() const {
  uint64_t hash = 0xcbf29ce484222325;  // FNV-1a hash of integers
  const auto mix = [&](uint64_t value) { hash = (hash ^ value) * 0x100000001b3; };
  for (const Tensor* tensor : leaves_) {
    mix(reinterpret_cast<uintptr_t>(tensor->data));
    mix(tensor->buffer == nullptr ? 0 : tensor->buffer->generation());
  }
  return hash;
}

PlanCache::PlanCache(Backend& backend, size_t capacity) : backend_(backend), capacity_(std::max<size_t>(capacity, 1)) {}

PlanCache::~PlanCache() = default;

GraphPlan& PlanCache::plan(Graph& graph) {
  const auto found =
      std::find_if(entries_.begin(), entries_.end(), [&](const Entry& entry) { return entry.uid == graph.uid(); });
  if (found != entries_.end()) {
    if (found->places.unchanged()) {
      entries_.splice(entries_.begin(), entries_, found);
      return *entries_.front().plan;
    }
    backend_.synchronize();
    entries_.erase(found);
  }
  make_room();
  auto plan = backend_.create_plan(graph);
  ++made_;
  entries_.push_front({graph.uid(), graph.life(), PersistentPlaces(graph), std::move(plan)});
  return *entries_.front().plan;
}

void PlanCache::clear() {
  entries_.clear();
}

void PlanCache::make_room() {
  const bool gone = std::any_of(entries_.begin(), entries_.end(), [](const Entry& e) { return e.life.expired(); });
  if (!gone && entries_.size() < capacity_) return;
  backend_.synchronize();  // an evicted plan may still be running
  entries_.remove_if([](const Entry& entry) { return entry.life.expired(); });
  while (entries_.size() >= capacity_) entries_.pop_back();
}

}  // namespace shoal
