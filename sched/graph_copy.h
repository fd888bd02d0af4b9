// Copies graphs to another device: tensors, data and views. A copy is independent of its original and owns its memory.
// Graph copies must be destroyed before the LeafCopies that they use.
//
//   LeafCopies leaves(meta);                 // on a meta device the split-state callback gives their layouts
//   GraphCopy prompt(graph, leaves), token(next_graph, leaves);     // share the copied weights and caches
//   auto plan = backend->create_plan(prompt.graph());
//   tensor_copy(*logits_on_meta, ...) with logits_on_meta = prompt.find(*logits)
//
// Not thread-safe. All calls block. No work may be queued on the tensors that are copied.
#pragma once

#include <deque>
#include <memory>
#include <unordered_map>
#include <vector>

#include "devices/device.h"
#include "graph/graph.h"

namespace shoal::sched {

/// Copies of the weights and caches of one or several graphs.
class LeafCopies {
 public:
  explicit LeafCopies(Device& device) : device_(device) {}
  LeafCopies(const LeafCopies&) = delete;
  LeafCopies& operator=(const LeafCopies&) = delete;

  /// Copies the graph's weights and caches that have no copy yet. After an error, none of them is added. Throws
  /// InvalidArgument for a tensor without memory, OutOfMemory, and errors of the device.
  void add(const Graph& graph);
  /// nullptr if the tensor has no copy.
  Tensor* find(const Tensor& original) const;
  /// Originals, in the order in which they were added.
  std::vector<const Tensor*> originals() const { return originals_; }
  Device& device() const { return device_; }

 private:
  Tensor* declare(const Tensor& original);

  Device& device_;
  std::deque<TensorContext> contexts_;  ///< a repeated name needs another context
  std::vector<std::unique_ptr<Buffer>> memory_;
  std::vector<const Tensor*> originals_;
  std::unordered_map<const Tensor*, Tensor*> copies_;
};

class GraphCopy {
 public:
  /// Adds missing copies to `leaves`, which must outlive the graph copy. Throws like LeafCopies::add.
  GraphCopy(const Graph& graph, LeafCopies& leaves);

  Graph& graph() { return graph_; }
  /// The copy of a leaf or node of the original graph; nullptr for any other tensor.
  Tensor* find(const Tensor& original) const;
  /// Copies the values of the original inputs. The copied inputs must have memory, so make a plan of the copy first.
  void copy_inputs();

 private:
  LeafCopies& leaves_;
  Graph graph_;
  std::vector<const Tensor*> inputs_;  ///< inputs of the original graph
  std::unordered_map<const Tensor*, Tensor*> copies_;
};

}  // namespace shoal::sched
