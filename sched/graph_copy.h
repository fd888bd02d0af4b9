// Copies of graphs on another device: tensors, data, views. What is copied is independent of the original afterwards
// and released by destruction, graphs before their leaves.
//
//   LeafCopies leaves(meta);                 // the split-state callback of a meta device says how they lie there
//   GraphCopy prompt(graph, leaves), token(next_graph, leaves);     // weights and caches are there once
//   auto plan = backend->create_plan(prompt.graph());
//   tensor_copy(*logits_on_meta, ...) where logits_on_meta = prompt.find(*logits)
//
// One thread. Blocking; nothing may be queued on what is copied.
#pragma once

#include <deque>
#include <memory>
#include <unordered_map>
#include <vector>

#include "devices/device.h"
#include "graph/graph.h"

namespace shoal::sched {

/// Weights and caches of one or several graphs.
class LeafCopies {
 public:
  explicit LeafCopies(Device& device) : device_(device) {}
  LeafCopies(const LeafCopies&) = delete;
  LeafCopies& operator=(const LeafCopies&) = delete;

  /// Copies what the graph's nodes use and is not here yet. All or nothing: throws InvalidArgument for a tensor without
  /// memory, OutOfMemory, and what the device throws.
  void add(const Graph& graph);
  /// nullptr for what is not here.
  Tensor* find(const Tensor& original) const;
  /// Originals, in the order in which they came.
  std::vector<const Tensor*> originals() const { return originals_; }
  Device& device() const { return device_; }

 private:
  Tensor* declare(const Tensor& original);

  Device& device_;
  std::deque<TensorContext> contexts_;  ///< the first, and others where names are taken
  std::vector<std::unique_ptr<Buffer>> memory_;
  std::vector<const Tensor*> originals_;
  std::unordered_map<const Tensor*, Tensor*> copies_;
};

class GraphCopy {
 public:
  /// `leaves` gets what it has not yet, and must outlive the copy. Throws as LeafCopies::add.
  GraphCopy(const Graph& graph, LeafCopies& leaves);

  Graph& graph() { return graph_; }
  /// The copy of a leaf or node of the original graph; nullptr for anything else.
  Tensor* find(const Tensor& original) const;
  /// Gives the inputs the values that they have in the original. All need memory by now: make a plan first.
  void copy_inputs();

 private:
  LeafCopies& leaves_;
  Graph graph_;
  std::vector<const Tensor*> inputs_;  ///< originals
  std::unordered_map<const Tensor*, Tensor*> copies_;
};

}  // namespace shoal::sched
