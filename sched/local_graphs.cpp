#include "sched/local_graphs.h"

#include <fmt/format.h>

#include <algorithm>

#include "base/error.h"
#include "sched/assign.h"

namespace shoal::sched {
namespace {

class Builder {
 public:
  Builder(const Schedule& schedule, const std::unordered_set<const Tensor*>& observed)
      : schedule_(schedule), observed_(observed) {
    result_.backends.resize(schedule.backends.size());
  }

  LocalGraphs run() {
    for (const Split& split : schedule_.splits) add(split);
    for (const Split& split : schedule_.splits) {
      for (const Copy& copy : split.copies) {
        if (copy.from_split >= 0) show(*copy.tensor);
        if (copy.ids != nullptr) show(*copy.ids);
      }
    }
    for (const Tensor* node : observed_) show(*node);
    return std::move(result_);
  }

 private:
  void add(const Split& split) {
    LocalGraph& local = result_.backends[static_cast<size_t>(split.backend)];
    LocalSplit place;
    if (local.graph == nullptr) {
      local.graph = std::make_unique<Graph>(
          fmt::format("{}@{}", schedule_.graph_name, schedule_.backends[static_cast<size_t>(split.backend)]));
    } else {
      local.cuts.push_back(static_cast<int>(local.graph->nodes().size()));
      place.segment = static_cast<int>(local.cuts.size());
    }
    for (const Copy& copy : split.copies) {
      place.copies.push_back(local.graph->copy_of(*copy.tensor));
      local.late.push_back({place.copies.back(), place.segment});
      local.tensors[copy.tensor] = place.copies.back();
    }
    for (const int index : split.nodes) {
      const Tensor& node = *schedule_.graph->nodes()[static_cast<size_t>(index)];
      Tensor* made = add_node(local, node);
      if (node.is_output) local.graph->output(made);
    }
    result_.splits.push_back(std::move(place));
  }

  Tensor* add_node(LocalGraph& local, const Tensor& node) {
    std::vector<Tensor*> sources;
    for (Tensor* source : node.src) sources.push_back(source == nullptr ? nullptr : source_of(local, *source));
    return local.tensors[&node] = local.graph->add_node(node.op, node.params, std::move(sources), node.name);
  }

  /// Returns the local tensor for a source of a node.
  Tensor* source_of(LocalGraph& local, Tensor& source) {
    const auto found = local.tensors.find(&source);
    if (found != local.tensors.end()) return found->second;
    if (source.is_leaf()) {
      check(source.is_persistent(), "{} is not among the copies of split {}", source.name, result_.splits.size());
      return &source;
    }
    check(is_view(source.op) && behind_views(source).is_leaf(), "{} is not among the copies of split {}", source.name,
          result_.splits.size());
    return add_node(local, source);
  }

  /// Adds a node to LocalGraph::shown. So the value of the node stays valid until the end of the node's segment.
  void show(const Tensor& tensor) {
    if (tensor.is_leaf()) return;
    const int backend = schedule_.nodes[static_cast<size_t>(tensor.id)].backend;
    if (backend < 0) return;  // the tensor is a view of a leaf
    LocalGraph& local = result_.backends[static_cast<size_t>(backend)];
    const Tensor* value = local.tensors.at(&tensor);
    if (shown_.insert(value).second) local.shown.push_back(value);
  }

  const Schedule& schedule_;
  const std::unordered_set<const Tensor*>& observed_;
  std::unordered_set<const Tensor*> shown_;  ///< values that LocalGraph::shown of a backend already contains
  LocalGraphs result_;
};

}  // namespace

PlanOptions plan_options(const LocalGraph& local, ComputeArena* arena) {
  return {.cuts = local.cuts, .shown = local.shown, .late = local.late, .arena = arena};
}

void check_writable(const LocalSplit& split, const GraphPlan& plan) {
  for (const Tensor* copy : split.copies) {
    const int from = plan.writable_from(*copy);
    check(from <= split.segment, "the copy of {} is written before segment {}, but has no memory before segment {}",
          copy->name, split.segment, from);
  }
}

LocalGraphs make_local_graphs(const Schedule& schedule, const std::unordered_set<const Tensor*>& observed) {
  return Builder(schedule, observed).run();
}

}  // namespace shoal::sched
