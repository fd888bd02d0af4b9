#include "models/place/weights_placement.h"

#include <algorithm>

#include "devices/device.h"
#include "graph/graph.h"
#include "graph/ops/ops.h"

namespace shoal::models {
namespace {

/// If the device can also use the mapping, repacking must leave 1 / kSparePart of the device's free memory unused.
constexpr size_t kSparePart = 10;

/// Calls the member function `question` of `device` for the matrix product of `weight` and a batch of `batch` tokens.
/// If `weight` contains experts, each token uses one expert.
bool answer(const Device& device, bool (Device::*question)(const Tensor&) const, const Tensor& weight, int64_t batch) {
  TensorContext context;
  Graph graph;
  Tensor* same = context.add("weight", weight.dtype, weight.shape);
  const int64_t length = weight.shape[0];
  if (weight.shape[2] == 1) {
    return (device.*question)(*mul_mat(graph, same, graph.input("x", DType::kF32, {length, batch, 1, 1})));
  }
  Tensor* x = graph.input("x", DType::kF32, {length, 1, batch, 1});
  return (device.*question)(*mul_mat_id(graph, same, x, graph.input("ids", DType::kI32, {1, batch, 1, 1})));
}

/// Whether the scheduler would copy the weight to the device for some batch size. Calls offload_op for a batch above
/// every threshold, and supports_op for a usual batch.
bool streams_to(const Device& device, const Tensor& weight) {
  constexpr int64_t kLargest = int64_t{1} << 24, kUsual = 512;
  if (weight.shape[1] == 1) return false;  // norms and biases are not factors of a product
  return answer(device, &Device::offload_op, weight, kLargest) && answer(device, &Device::supports_op, weight, kUsual);
}

bool is_streamed(std::span<Tensor* const> tensors, std::span<Device* const> before) {
  return std::any_of(before.begin(), before.end(), [&](const Device* device) {
    return std::any_of(tensors.begin(), tensors.end(),
                       [&](const Tensor* tensor) { return streams_to(*device, *tensor); });
  });
}

/// Whether tensors with buffer type `type` fit into the free memory of the device. For a meta device, the free memory
/// of all members counts. With `spare`, 1 / kSparePart of the free memory must stay unused.
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

std::unique_ptr<Buffer> buffer_of_mapping(const Model& model, Device& device, std::span<std::byte> bytes) {
  // The members of a meta device read their shards into their own memory, because the file is on one NUMA node.
  if (bytes.empty() || device.type() == DeviceType::kMeta) return nullptr;
  auto buffer = device.buffer_from_host_ptr(bytes.data(), bytes.size());
  if (buffer == nullptr) return nullptr;
  const auto fits = [&](const Tensor* tensor) {
    return reinterpret_cast<uintptr_t>(model.file.tensor(tensor->name).data) % buffer->alignment() == 0 &&
           buffer->type().alloc_size(*tensor) == tensor->bytes();
  };
  std::span<Tensor* const> tensors = model.weights.tensors();
  return std::all_of(tensors.begin(), tensors.end(), fits) ? std::move(buffer) : nullptr;
}

bool can_use_mapping(const Model& model, Device& device) {
  const std::span<const std::byte> bytes = model.file.tensor_span();
  return buffer_of_mapping(model, device, {const_cast<std::byte*>(bytes.data()), bytes.size()}) != nullptr;
}

WeightsPlacement place_weights(const Model& model, Device& device, std::span<Tensor* const> tensors,
                               std::span<Device* const> before, const LoadOptions& options) {
  const bool can_map = options.use_mapping && can_use_mapping(model, device);
  BufferType& own = device.weights_type();
  const bool repack = options.repack && !(can_map && options.prefer_mapping) && &own != &device.buffer_type() &&
                      !(options.op_offload && device.buffer_type().is_host() && is_streamed(tensors, before)) &&
                      fits(device, tensors, own, can_map);
  if (repack) return {&own, false, true};
  return {&device.buffer_type(), can_map, false};
}

}  // namespace shoal::models
