// Pieces of which devices make their plans: the check of a range, and a plan for devices that run nodes one by one.
#pragma once

#include <functional>
#include <span>
#include <vector>

#include "devices/allocate.h"
#include "devices/backend.h"

namespace shoal {

/// Throws DeviceError, naming the node, unless the device supports all nodes of the range and can read the memory in
/// which placed sources lie; InvalidArgument when it is no range of the graph.
void check_supported(const Device& device, const GraphRange& range);

/// A graph range with its memory, divided into segments; the graph is frozen.
class NodePlan : public GraphPlan {
 public:
  /// `wait` waits for queued runs, and is called before the memory goes; without it runs are not queued.
  NodePlan(Backend& backend, const GraphRange& range, const PlanOptions& options, std::function<void()> wait = {});
  ~NodePlan() override;
  size_t allocated_bytes() const override { return memory_.bytes(); }
  int segments() const override { return static_cast<int>(cuts_.size()) + 1; }
  int writable_from(const Tensor& input) const override { return memory_.writable_from(input); }
  /// Of the segments [first, last), views and empty ones too.
  std::span<Tensor* const> nodes(int first, int last) const;

 protected:
  GraphMemory& memory() { return memory_; }
  const GraphMemory& memory() const { return memory_; }
  std::span<const int> cuts() const { return cuts_; }
  /// The first node of a segment; of segments(), the end of the last.
  int begin_of(int segment) const;

 private:
  std::vector<int> cuts_;
  GraphMemory memory_;
  std::function<void()> wait_;
};

}  // namespace shoal
