// Helpers for the plans of devices: a check of a range, and a plan class for devices that run nodes one by one.
#pragma once

#include <functional>
#include <span>
#include <vector>

#include "devices/allocate.h"
#include "devices/backend.h"

namespace shoal {

/// If the device does not support a node of the range or cannot read the memory of a placed source, throws DeviceError
/// that names the node. Throws InvalidArgument if the range is not a range of the graph or contains a collective.
void check_supported(const Device& device, const GraphRange& range);

/// A graph range with its memory, divided into segments. The constructor freezes the graph.
class NodePlan : public GraphPlan {
 public:
  /// `wait` waits for queued runs. The destructor calls `wait` before it frees the memory. Callers that do not queue
  /// runs omit `wait`.
  NodePlan(Backend& backend, const GraphRange& range, const PlanOptions& options, std::function<void()> wait = {});
  ~NodePlan() override;
  size_t allocated_bytes() const override { return memory_.bytes(); }
  int segments() const override { return static_cast<int>(cuts_.size()) + 1; }
  int writable_from(const Tensor& input) const override { return memory_.writable_from(input); }
  /// Nodes of the segments [first, last), including views and empty nodes.
  std::span<Tensor* const> nodes(int first, int last) const;

 protected:
  GraphMemory& memory() { return memory_; }
  const GraphMemory& memory() const { return memory_; }
  std::span<const int> cuts() const { return cuts_; }
  /// Index of a segment's first node. If `segment` is segments(), returns the end of the range.
  int begin_of(int segment) const;

 private:
  std::vector<int> cuts_;
  GraphMemory memory_;
  std::function<void()> wait_;
};

}  // namespace shoal
