// Chooses a backend for every node of a graph. Nodes that use weights or caches run on the backend that stores this
// memory. Other nodes run on the backends of their neighbours, so that few copies are needed. These functions change
// neither the graph nor memory.
#pragma once

#include <vector>

#include "sched/schedule.h"

namespace shoal::sched {

/// Caches the results of device queries about the nodes of a graph, so that each query is made only once.
class Abilities {
 public:
  Abilities(const Graph& graph, std::span<Device* const> devices, const Home& home)
      : graph_(graph), devices_(devices), home_(home), answers_(graph.nodes().size() * devices.size(), kUnknown) {}

  int backends() const { return static_cast<int>(devices_.size()); }
  const Graph& graph() const { return graph_; }
  /// Whether the backend can run the node. Sources that the node does not write may be copied to the backend.
  bool runs(int backend, const Tensor& node);
  bool wants(int backend, const Tensor& node) const { return devices_[backend]->offload_op(node); }
  /// Whether the backend can use the leaf in place.
  bool reads(int backend, const Tensor& leaf) const;
  /// The backend whose device stores the leaf. If no backend's device stores the leaf, the result is the last backend
  /// that can use the leaf in place. Throws InvalidArgument if no backend can use the leaf.
  int home(const Tensor& leaf) const;
  /// Whether the leaf is in host memory.
  bool is_host(const Tensor& leaf) const { return home_(leaf)->is_host(); }
  Device& device(int backend) const { return *devices_[backend]; }

 private:
  enum Answer : int8_t { kUnknown, kNo, kYes };
  Answer ask(int backend, const Tensor& node) const;

  const Graph& graph_;
  std::span<Device* const> devices_;
  const Home& home_;
  std::vector<Answer> answers_;  ///< one answer for each pair of node and backend
};

/// Whether the tensor is a view of a leaf. Every backend makes its own views of leaves.
bool is_leaf_view(const Tensor& tensor);

/// Chooses the backend of each node and stores the reason. make_schedule() later sets Assignment::split. Throws the
/// errors of make_schedule().
std::vector<Assignment> assign(Abilities& abilities, const ScheduleOptions& options);

}  // namespace shoal::sched
