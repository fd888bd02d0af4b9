#include "sched/schedule.h"

#include <algorithm>
#include <map>

#include "base/error.h"
#include "sched/assign.h"

namespace shoal::sched {
namespace {

/// Divides a graph into splits, in the order of the nodes. Each node already has a backend.
class Splitter {
 public:
  Splitter(Abilities& abilities, const ScheduleOptions& options, Schedule& schedule)
      : abilities_(abilities), options_(options), schedule_(schedule), copied_(abilities.backends()) {}

  void run() {
    for (const Tensor* node : abilities_.graph().nodes()) {
      if (is_view(node->op)) {
        add_view(*node);
      } else {
        add_node(*node);
      }
    }
    schedule_.ordered = shares_a_cache();
  }

 private:
  Assignment& of(const Tensor& node) { return schedule_.nodes[static_cast<size_t>(node.id)]; }

  void add_view(const Tensor& view) {
    const Tensor& base = behind_views(view);
    if (!base.is_leaf()) {
      of(view).split = of(base).split;
    } else if (view.is_output && base.is_persistent()) {
      // Every backend that uses the view makes its own view. The view that the caller reads is on the backend that
      // stores the leaf.
      of(view).backend = abilities_.home(base);
      of(view).split = latest_split(of(view).backend);
    } else {
      return;
    }
    schedule_.splits[static_cast<size_t>(of(view).split)].nodes.push_back(view.id);
    if (of(view).split + 1 == static_cast<int>(schedule_.splits.size())) ends_ |= options_.observed.contains(&view);
  }

  /// Returns the latest split of the backend. If the backend has no split, adds one.
  int latest_split(int backend) {
    for (int s = static_cast<int>(schedule_.splits.size()) - 1; s >= 0; --s) {
      if (schedule_.splits[static_cast<size_t>(s)].backend == backend) return s;
    }
    schedule_.splits.push_back({backend, {}, {}});
    return static_cast<int>(schedule_.splits.size()) - 1;
  }

  void add_node(const Tensor& node) {
    const int backend = of(node).backend;
    std::vector<Copy> needed;
    for (const Tensor* source : node.src) {
      if (source != nullptr) need(backend, node, *source, needed);
    }
    const bool streams_weights =
        std::any_of(needed.begin(), needed.end(), [](const Copy& copy) { return copy.tensor->role == Role::kWeight; });
    // A node with a copied weight starts a new split. So the weight can reuse the memory of earlier copied weights. The
    // new split also ensures that the ids of experts are known before the weight is copied.
    const bool fresh =
        schedule_.splits.empty() || schedule_.splits.back().backend != backend || streams_weights || ends_;
    if (fresh) schedule_.splits.push_back({backend, {}, {}});
    Split& split = schedule_.splits.back();
    split.copies.insert(split.copies.end(), needed.begin(), needed.end());
    split.nodes.push_back(node.id);
    of(node).split = static_cast<int>(schedule_.splits.size()) - 1;
    ends_ = options_.observed.contains(&node);
  }

  /// Adds a copy to `needed` if the backend cannot use `source` in place and has not copied `source` before. If
  /// `source` is a view of a leaf, the copy contains the leaf, because the backend makes its own view of the copied
  /// leaf.
  void need(int backend, const Tensor& node, const Tensor& source, std::vector<Copy>& needed) {
    const Tensor& behind = behind_views(source);
    const Tensor& wanted = behind.is_leaf() ? behind : source;
    if (!wanted.is_leaf() && of(wanted).backend == backend) return;
    if (wanted.is_leaf() && wanted.is_persistent() && abilities_.reads(backend, wanted)) return;
    if (!copied_[static_cast<size_t>(backend)].insert(&wanted).second) return;
    Copy copy{.tensor = &wanted, .bytes = static_cast<int64_t>(wanted.bytes())};
    if (!wanted.is_leaf()) {
      copy.from_split = of(wanted).split;
      copy.from_backend = of(wanted).backend;
    } else if (wanted.is_persistent()) {
      copy.from_backend = abilities_.home(wanted);
      copy.streamed = wanted.role == Role::kWeight && abilities_.is_host(wanted);
      // All experts are copied if another node also uses the weight, or if the node uses the weight through a view.
      const bool experts = node.op == Op::kMulMatId && node.src[0] == &wanted && abilities_.is_host(wanted);
      // The host reads the ids. So the ids must be a computed node or a leaf that no graph writes.
      const Tensor* ids = experts && users(wanted) == 1 ? node.src[2] : nullptr;
      if (ids != nullptr && !is_leaf_view(*ids) && ids->storage()->role != Role::kCache) {
        copy.ids = ids;
        copy.select = &std::get<SelectParams>(node.params);
      }
    }
    needed.push_back(copy);
  }

  int users(const Tensor& leaf) {
    if (users_.empty()) {
      for (const Tensor* node : abilities_.graph().nodes()) {
        for (const Tensor* source : node->src) ++users_[source];
      }
    }
    return users_[&leaf];
  }

  /// Whether one backend writes a cache and another backend uses the cache in place.
  bool shares_a_cache() {
    std::map<const Tensor*, int> writers;
    for (const Tensor* node : abilities_.graph().nodes()) {
      if (info(node->op).alias != Alias::kWrites) continue;
      const auto [known, added] = writers.emplace(node->storage(), of(*node).backend);
      if (!added && known->second != of(*node).backend) return true;
    }
    for (const Tensor* node : abilities_.graph().nodes()) {
      if (is_view(node->op)) continue;
      for (const Tensor* source : node->src) {
        if (source == nullptr) continue;
        const Tensor& behind = behind_views(*source);
        const auto writer = behind.is_leaf() ? writers.find(&behind) : writers.end();
        if (writer == writers.end() || writer->second == of(*node).backend) continue;
        // A backend that cannot use the cache in place gets a copy. The backend that stores the cache queues this copy
        // on its own stream. If the storing backend also writes the cache, its stream orders the copy and the writes.
        if (abilities_.reads(of(*node).backend, behind) || abilities_.home(behind) != writer->second) return true;
      }
    }
    return false;
  }

  Abilities& abilities_;
  const ScheduleOptions& options_;
  Schedule& schedule_;
  std::vector<std::unordered_set<const Tensor*>> copied_;  ///< tensors that each backend has copied so far
  std::unordered_map<const Tensor*, int> users_;           ///< number of uses of each leaf; counted by the first call
                                                           ///< of users()
  bool ends_ = false;                                      ///< whether the next node must begin a new split, because
                                                           ///< the last node is observed
};

size_t padded(size_t bytes) {
  constexpr size_t kAlignment = 64;  // alignment of slots and inputs in host memory
  return (bytes + kAlignment - 1) / kAlignment * kAlignment;
}

}  // namespace

std::string_view name_of(Reason reason) {
  constexpr std::string_view kNames[] = {"user", "weight", "cache", "offload", "neighbour", "unsupported", "view"};
  static_assert(std::size(kNames) == static_cast<size_t>(Reason::kCount));
  return kNames[static_cast<size_t>(reason)];
}

const BufferType* home_of(const Tensor& tensor) {
  return tensor.buffer != nullptr ? &tensor.buffer->type() : nullptr;
}

int Schedule::copies() const {
  size_t count = 0;
  for (const Split& split : splits) count += split.copies.size();
  return static_cast<int>(count);
}

bool Schedule::is_pipeline() const {
  std::vector<int> seen;
  for (const Split& split : splits) {
    if (!seen.empty() && seen.back() == split.backend) continue;
    if (std::find(seen.begin(), seen.end(), split.backend) != seen.end()) return false;
    seen.push_back(split.backend);
  }
  return true;
}

int copies_for(const Schedule& schedule, int wanted) {
  return schedule.is_pipeline() ? std::max(wanted, 1) : 1;
}

int slots_for(const Copy& copy, int copies) {
  if (copy.streamed) return 0;
  return copy.is_input() ? std::max(copies, 2) : copies;
}

size_t slot_bytes(const Copy& copy) {
  return padded(copy.tensor->bytes());
}

size_t input_bytes(const Graph& graph) {
  size_t bytes = 0;
  for (const Tensor* input : graph.inputs()) bytes += padded(input->bytes());
  return bytes;
}

size_t host_bytes(const Schedule& schedule, int copies) {
  size_t bytes = 0;
  std::unordered_set<const Tensor*> inputs;
  for (const Split& split : schedule.splits) {
    for (const Copy& copy : split.copies) {
      if (copy.is_input() && !inputs.insert(copy.tensor).second) continue;  // all backends share one copy of an input
      bytes += slot_bytes(copy) * static_cast<size_t>(slots_for(copy, copies));
    }
  }
  return bytes;
}

int64_t Schedule::copied_bytes() const {
  int64_t bytes = 0;
  for (const Split& split : splits) {
    for (const Copy& copy : split.copies) bytes += copy.bytes;
  }
  return bytes;
}

Schedule make_schedule(const Graph& graph, std::span<Device* const> devices, const ScheduleOptions& options) {
  require<InvalidArgument>(std::ranges::find(devices, nullptr) == devices.end(),
                           "[{}] expected a device for each backend, got nullptr", graph.name());
  Schedule schedule;
  schedule.graph = &graph;
  schedule.graph_name = graph.name();
  for (const Device* device : devices) schedule.backends.push_back(device->name());
  Abilities abilities(graph, devices, options.home);
  schedule.nodes = assign(abilities, options);
  Splitter(abilities, options, schedule).run();
  return schedule;
}

}  // namespace shoal::sched
