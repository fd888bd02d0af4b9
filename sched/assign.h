// Assignment: a backend for every node. Nodes that use weights or caches go where these lie, nodes in between follow
// their neighbours, so that few borders remain. A pure function.
#pragma once

#include <vector>

#include "sched/schedule.h"

namespace shoal::sched {

/// What the devices say about the nodes of a graph, asked once.
class Abilities {
 public:
  Abilities(const Graph& graph, std::span<Device* const> devices, const Home& home)
      : graph_(graph), devices_(devices), home_(home), answers_(graph.nodes().size() * devices.size(), kUnknown) {}

  int backends() const { return static_cast<int>(devices_.size()); }
  const Graph& graph() const { return graph_; }
  /// Can this backend run the node, given that what it does not write can be copied?
  bool runs(int backend, const Tensor& node);
  bool wants(int backend, const Tensor& node) const { return devices_[backend]->offload_op(node); }
  /// Can it use the leaf where it lies?
  bool reads(int backend, const Tensor& leaf) const;
  /// The backend whose device has the leaf, else the last that can use it there. Throws InvalidArgument where none can.
  int home(const Tensor& leaf) const;
  /// Is the leaf in host memory?
  bool is_host(const Tensor& leaf) const { return home_(leaf)->is_host(); }
  Device& device(int backend) const { return *devices_[backend]; }

 private:
  enum Answer : int8_t { kUnknown, kNo, kYes };
  Answer ask(int backend, const Tensor& node) const;

  const Graph& graph_;
  std::span<Device* const> devices_;
  const Home& home_;
  std::vector<Answer> answers_;  ///< by node, then backend
};

/// A view of a leaf, which every backend makes for itself.
bool is_leaf_view(const Tensor& tensor);

/// Backends and reasons; splits come later. Throws as make_schedule.
std::vector<Assignment> assign(Abilities& abilities, const ScheduleOptions& options);

}  // namespace shoal::sched
