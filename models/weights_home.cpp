#include "models/weights_home.h"

#include <algorithm>

#include "devices/device.h"
#include "graph/graph.h"
#include "graph/ops/ops.h"

namespace shoal::models {
namespace {

/// What stays free of a device's memory when its weights are repacked rather than used in the mapping.
constexpr size_t kSparePart = 10;

/// Would the device, for any batch, have weights brought to it that lie in memory of the host?
bool brings_weights(const Device& device) {
  constexpr int64_t kBatch = int64_t{1} << 24, kLength = 256;
  TensorContext context;
  Graph graph;
  Tensor* weight = context.add("weight", DType::kF16, {kLength, kLength, 1, 1});
  Tensor* x = graph.input("x", DType::kF32, {kLength, kBatch, 1, 1});
  return device.offload_op(*mul_mat(graph, weight, x));
}

/// Does the device, or do its members, have room for the tensors in memory of this type, and `spare` besides?
bool fits(const Device& device, std::span<Tensor* const> tensors, const BufferType& type, bool spare) {
  const size_t free = device.memory().free;
  size_t needed = 0;
  for (const Tensor* tensor : tensors) {
    const size_t bytes = type.alloc_size(*tensor);
    if (bytes > type.max_size()) return false;
    needed += bytes;
  }
  return needed <= (spare ? free - free / kSparePart : free);
}

}  // namespace

WeightsHome weights_home(const Model& model, Device& device, std::span<Tensor* const> tensors,
                         std::span<Device* const> others, const LoadOptions& options) {
  const bool can_map = options.use_mapping && can_use_mapping(model, device);
  BufferType& own = device.weights_type();
  const bool brought = std::any_of(others.begin(), others.end(),
                                   [&](const Device* other) { return other != &device && brings_weights(*other); });
  const bool in_host_memory = device.buffer_type().is_host();
  const bool repack = options.repack && !(can_map && options.prefer_mapping) && &own != &device.buffer_type() &&
                      !(brought && in_host_memory) && fits(device, tensors, own, can_map);
  if (repack) return {&own, false, true};
  return {&device.buffer_type(), can_map, false};
}

}  // namespace shoal::models
