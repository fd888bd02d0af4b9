// Assignment: chooses a backend for every node. Nodes that use weights or caches run on the backend that stores this
// memory. Other nodes follow their neighbours, so that few copies are needed. A pure function.
#pragma once

#include <vector>

#include "sched/schedule.h"

namespace shoal::sched {

/// Caches the devices' answers about the nodes of a graph, so that each question is asked once.
class Abilities {
 public:
  Abilities(const Graph& graph, std::span<Device* const> devices, const Home& home)
      : graph_(graph), devices_(devices), home_(home), answers_(graph.nodes().size() * devices.size(), kUnknown) {}

  int backends() const { return static_cast<int>(devices_.size()); }
  const Graph& graph() const { return graph_; }
  /// True if the backend can run the node. Sources that the node does not write may be copied.
  bool runs(int backend, const Tensor& node);
  bool wants(int backend, const Tensor& node) const { return devices_[backend]->offload_op(node); }
  /// True if the backend can use the leaf in place.
  bool reads(int backend, const Tensor& leaf) const;
  /// The backend whose device stores the leaf, otherwise the last backend that can use it in place. Throws
  /// InvalidArgument if there is none.
  int home(const Tensor& leaf) const;
  /// True if the leaf is in host memory.
  bool is_host(const Tensor& leaf) const { return home_(leaf)->is_host(); }
  Device& device(int backend) const { return *devices_[backend]; }

 private:
  enum Answer : int8_t { kUnknown, kNo, kYes };
  Answer ask(int backend, const Tensor& node) const;

  const Graph& graph_;
  std::span<Device* const> devices_;
  const Home& home_;
  std::vector<Answer> answers_;  ///< one for each node and backend
};

/// True for a view of a leaf. Every backend makes such views itself.
bool is_leaf_view(const Tensor& tensor);

/// Chooses the backend of each node and the reason; make_schedule() sets the splits. Throws like make_schedule().
std::vector<Assignment> assign(Abilities& abilities, const ScheduleOptions& options);

}  // namespace shoal::sched
