// Copies a graph with its tensors, data and views to another device. The copy has its own memory and does not use the
// original graph. Graph copies must be destroyed before the LeafCopies that they use. In this example, `prompt` and
// `token` share the copied weights and caches. On a meta device, the split-state callback returns the layouts of the
// copies.
//
//   LeafCopies leaves(meta);
//   GraphCopy prompt(graph, leaves), token(next_graph, leaves);
//   auto plan = backend->create_plan(prompt.graph());
//   tensor_copy(*logits_on_meta, ...) with logits_on_meta = prompt.find(*logits)
//
// Not thread-safe. All calls block. The copied tensors must not have queued work.
#pragma once

#include <deque>
#include <memory>
#include <unordered_map>
#include <vector>

#include "devices/device.h"
#include "graph/graph.h"

namespace shoal::sched {

/// Holds copies of the weights and caches of one or several graphs.
class LeafCopies {
 public:
  explicit LeafCopies(Device& device) : device_(device) {}
  LeafCopies(const LeafCopies&) = delete;
  LeafCopies& operator=(const LeafCopies&) = delete;

  /// Copies the graph's weights and caches that have no copy yet. If the call fails, it adds no copies. Throws
  /// OutOfMemory, errors of the device, and InvalidArgument if a weight or cache has no memory.
  void add(const Graph& graph);
  /// Returns nullptr if the tensor has no copy.
  Tensor* find(const Tensor& original) const;
  /// Original tensors, in the order in which they were added.
  std::vector<const Tensor*> originals() const { return originals_; }
  Device& device() const { return device_; }

 private:
  Tensor* declare(const Tensor& original);

  Device& device_;
  std::deque<TensorContext> contexts_;  ///< names are unique within a context, but several originals may have the same
                                        ///< name
  std::vector<std::unique_ptr<Buffer>> memory_;
  std::vector<const Tensor*> originals_;
  std::unordered_map<const Tensor*, Tensor*> copies_;
};

class GraphCopy {
 public:
  /// Adds copies of the graph's weights and caches to `leaves`, if `leaves` does not have them yet. `leaves` must
  /// outlive the graph copy. Throws the errors of LeafCopies::add.
  GraphCopy(const Graph& graph, LeafCopies& leaves);

  Graph& graph() { return graph_; }
  /// The copy of a leaf or node of the original graph; nullptr for any other tensor.
  Tensor* find(const Tensor& original) const;
  /// Copies the values of the original inputs to the copied inputs. The copied inputs must have memory, so callers must
  /// create the plan of the copied graph before this call.
  void copy_inputs();

 private:
  LeafCopies& leaves_;
  Graph graph_;
  std::vector<const Tensor*> inputs_;  ///< inputs of the original graph
  std::unordered_map<const Tensor*, Tensor*> copies_;
};

}  // namespace shoal::sched
