#include "devices/node_plan.h"

#include "base/error.h"
#include "graph/external_op.h"
#include "graph/text.h"

namespace shoal {
void check_supported(const Device& device, const GraphRange& range) {
  check_range(range);
  for (const Tensor* node : nodes_of(range)) {
    if (is_collective(node->op)) {
      fail<InvalidArgument>(
          "[{}] '{}' is a collective, which a single device cannot run: omit the node; a meta device adds the "
          "collectives that a graph needs",
          device.name(), to_string(*node));
    }
    if (!device.supports_op(*node)) {
      fail<DeviceError>("[{}] cannot run '{}': {}", device.name(), to_string(*node),
                        node->op == Op::kExternal ? external_remedy(*node, device.reg().name())
                                                  : "run this node on another device, or cast its sources");
    }
    for (const Tensor* source : node->src) {
      if (source == nullptr || source->buffer == nullptr) continue;
      const BufferType& type = source->buffer->type();
      if (device.supports_buffer_type(type)) continue;
      fail<DeviceError>(
          "[{}] cannot read {} of '{}': this source is in memory of {}; copy the source to this device, or run the "
          "graph through a scheduler",
          device.name(), source->name, to_string(*node), type.name());
    }
  }
}

NodePlan::NodePlan(Backend& backend, const GraphRange& range, const PlanOptions& options, std::function<void()> wait)
    : GraphPlan(backend), cuts_(options.cuts), memory_(range, backend.device(), options), wait_(std::move(wait)) {
  note_memory(range);
  range.graph->freeze();
}

NodePlan::~NodePlan() {
  if (wait_ && has_backend()) wait_();
}

int NodePlan::begin_of(int segment) const {
  if (segment == 0) return memory_.range().begin;
  return segment < segments() ? cuts_[static_cast<size_t>(segment) - 1] : memory_.range().end;
}

std::span<Tensor* const> NodePlan::nodes(int first, int last) const {
  return nodes_of({memory_.range().graph, begin_of(first), begin_of(last)});
}

}  // namespace shoal
