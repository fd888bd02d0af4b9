#include "sched/assign.h"

#include <algorithm>
#include <optional>

#include "base/error.h"
#include "graph/external_op.h"
#include "graph/text.h"

namespace shoal::sched {
namespace {

bool writes(const Tensor& node) {
  return info(node.op).alias == Alias::kWrites;
}

class Assigner {
 public:
  Assigner(Abilities& abilities, const ScheduleOptions& options)
      : abilities_(abilities), options_(options), nodes_(abilities.graph().nodes()), found_(nodes_.size()) {}

  std::vector<Assignment> run() {
    for (const Tensor* node : nodes_) {
      if (is_view(node->op) && options_.user.contains(node)) {
        fail<InvalidArgument>("{} is a view and runs on the backend of its base; set the backend of {} instead",
                              node->name, behind_views(*node).name);
      }
      if (!is_view(node->op)) fix(*node);
    }
    const int last = abilities_.backends() - 1;
    // In the first two passes, all backends except the last one take unassigned neighbours of their nodes. The last
    // backend takes neighbours only in the next two passes, because the other backends are faster.
    spread(nodes_.begin(), nodes_.end(), last);
    spread(nodes_.rbegin(), nodes_.rend(), last);
    spread(nodes_.begin(), nodes_.end(), -1);
    spread(nodes_.rbegin(), nodes_.rend(), -1);
    for (const Tensor* node : nodes_) {
      if (is_view(node->op)) {
        of(*node) = {is_leaf_view(*node) ? -1 : of(behind_views(*node)).backend, Reason::kView, -1};
      } else if (of(*node).backend < 0) {
        of(*node) = {first_that_runs(*node), lost_.contains(node) ? Reason::kUnsupported : Reason::kNeighbour, -1};
      }
    }
    return std::move(found_);
  }

 private:
  Assignment& of(const Tensor& node) { return found_[static_cast<size_t>(node.id)]; }

  void fix(const Tensor& node) {
    // If a node has already written into a cache, later writes into the cache run on the same backend.
    const Tensor* written = writes(node) ? &behind_views(*node.src[0]) : nullptr;
    const int writer = written != nullptr && !written->is_leaf() ? of(*written).backend : -1;
    const auto set = options_.user.find(&node);
    if (set != options_.user.end()) {
      if (writer >= 0 && set->second != writer) {
        fail<InvalidArgument>(
            "{} is set to run on {}, but writes into the cache that {} wrote on {}; set the backend of {} instead",
            node.name, abilities_.device(set->second).name(), written->name, abilities_.device(writer).name(),
            written->name);
      }
      return follow_user(node, set->second);
    }
    if (writer >= 0 && abilities_.runs(writer, node)) return void(of(node) = {writer, Reason::kCache, -1});
    const Tensor* resident = resident_of(node);
    if (resident == nullptr) return;
    const int home = abilities_.home(*resident);
    const Reason reason = resident->role == Role::kCache ? Reason::kCache : Reason::kWeight;
    if (reason == Reason::kWeight && options_.op_offload && abilities_.is_host(*resident)) {
      for (int b = 0; b < home; ++b) {
        if (abilities_.wants(b, node) && abilities_.runs(b, node)) return void(of(node) = {b, Reason::kOffload, -1});
      }
    }
    if (abilities_.runs(home, node)) return void(of(node) = {home, reason, -1});
    // spread() could choose the backend of a neighbour, and this backend could need a copy of the weight. So the node
    // takes the first backend that can use the weight in place.
    for (int b = 0; b < abilities_.backends(); ++b) {
      if (abilities_.reads(b, *resident) && abilities_.runs(b, node)) {
        return void(of(node) = {b, Reason::kUnsupported, -1});
      }
    }
    lost_.insert(&node);
  }

  void follow_user(const Tensor& node, int backend) {
    if (!abilities_.runs(backend, node)) {
      fail<DeviceError>(
          "[{}] cannot run '{}', although this backend was set for the node; set another backend, or none",
          abilities_.device(backend).name(), to_string(node));
    }
    of(node) = {backend, Reason::kUser, -1};
  }

  /// Returns the weight or cache that decides the node's backend. If the node writes a cache, this cache decides.
  /// Otherwise the largest leaf that the node reads decides, even if the node reads a view of this leaf, or the result
  /// of a write into this leaf. The leaves of rope (frequency factors) do not decide, because all layers share them. If
  /// they decided, all heads would be copied to the backend of the factors and back.
  const Tensor* resident_of(const Tensor& node) const {
    if (writes(node)) return node.storage();
    if (node.op == Op::kRope) return nullptr;
    const Tensor* largest = nullptr;
    for (const Tensor* source : node.src) {
      if (source == nullptr || !source->storage()->is_persistent()) continue;
      const Tensor* leaf = source->storage();
      if (largest == nullptr || leaf->bytes() > largest->bytes()) largest = leaf;
    }
    return largest;
  }

  /// An unassigned node takes the backend of the nearest assigned node that precedes it in [begin, end), if this
  /// backend can run the node. No node takes the backend `barred`. A node that runs on `barred` stops this propagation
  /// until the next node that is assigned to another backend.
  template <class Iterator>
  void spread(Iterator begin, Iterator end, int barred) {
    int current = -1;
    for (Iterator it = begin; it != end; ++it) {
      const Tensor& node = **it;
      if (is_view(node.op)) continue;
      Assignment& assigned = of(node);
      if (assigned.backend >= 0) {
        current = assigned.backend == barred ? -1 : assigned.backend;
      } else if (current >= 0 && abilities_.runs(current, node)) {
        assigned = {current, lost_.contains(&node) ? Reason::kUnsupported : Reason::kNeighbour, -1};
      }
    }
  }

  int first_that_runs(const Tensor& node) {
    for (int b = 0; b < abilities_.backends(); ++b) {
      if (abilities_.runs(b, node)) return b;
    }
    std::string names;
    for (int b = 0; b < abilities_.backends(); ++b) names += (b > 0 ? ", " : "") + abilities_.device(b).name();
    fail<DeviceError>("none of the devices ({}) can run '{}'; {}", names, to_string(node), remedy_for(node));
  }

  std::string remedy_for(const Tensor& node) const {
    const int last = abilities_.backends() - 1;
    const bool ends_with_cpu = abilities_.device(last).type() == DeviceType::kCpu;
    bool has_mesh = false;
    for (int b = 0; b <= last; ++b) has_mesh |= abilities_.device(b).type() == DeviceType::kMeta;
    if (has_mesh) {
      return fmt::format("every member of a meta device must be able to run the node: leave out members that cannot{}",
                         ends_with_cpu ? "" : ", or add a CPU device as the last device");
    }
    if (node.op == Op::kExternal) return external_remedy(node, abilities_.device(last).reg().name());
    if (!ends_with_cpu) return "add a CPU device as the last device, or cast the sources of the node";
    const int home = writes(node) ? abilities_.home(*node.storage()) : last;
    if (home == last) return "cast the sources of the node";
    return fmt::format(
        "{} is stored on {}, which cannot run the node: place the tensor on another device, or omit this device",
        node.storage()->name, abilities_.device(home).name());
  }

  Abilities& abilities_;
  const ScheduleOptions& options_;
  std::span<Tensor* const> nodes_;
  std::vector<Assignment> found_;
  std::unordered_set<const Tensor*> lost_;  ///< nodes that cannot run on any backend that can use their weight or cache
                                            ///< in place
};

}  // namespace

bool is_leaf_view(const Tensor& tensor) {
  return is_view(tensor.op) && behind_views(tensor).is_leaf();
}

bool Abilities::runs(int backend, const Tensor& node) {
  Answer& answer = answers_[static_cast<size_t>(node.id * backends() + backend)];
  if (answer == kUnknown) answer = ask(backend, node);
  return answer == kYes;
}

Abilities::Answer Abilities::ask(int backend, const Tensor& node) const {
  if (writes(node) && !reads(backend, *node.storage())) return kNo;
  return devices_[backend]->supports_op(node) ? kYes : kNo;
}

bool Abilities::reads(int backend, const Tensor& leaf) const {
  const BufferType* type = home_(leaf);
  require<InvalidArgument>(type != nullptr, "{} has no memory; place it on a device before graphs are scheduled",
                           describe(leaf));
  return devices_[backend]->supports_buffer_type(*type);
}

int Abilities::home(const Tensor& leaf) const {
  const BufferType* type = home_(leaf);
  require<InvalidArgument>(type != nullptr, "{} has no memory; place it on a device before graphs are scheduled",
                           describe(leaf));
  for (int b = 0; b < backends(); ++b) {
    if (devices_[b] == &type->device()) return b;
  }
  // Host memory that belongs to none of the backends' devices is assigned to the last backend that can use this memory,
  // usually a CPU.
  for (int b = backends() - 1; b >= 0; --b) {
    if (devices_[b]->supports_buffer_type(*type)) return b;
  }
  fail<InvalidArgument>("{} is in memory of {}, which none of the backends can use; add a backend of that device",
                        describe(leaf), type->name());
}

std::vector<Assignment> assign(Abilities& abilities, const ScheduleOptions& options) {
  require<InvalidArgument>(abilities.backends() > 0, "a schedule needs at least one backend");
  return Assigner(abilities, options).run();
}

}  // namespace shoal::sched
