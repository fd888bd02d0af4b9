// Where the weights of a device lie: in the file's mapping, or in memory of the device, repacked or as they are. One
// function of model, devices and options decides, so that what `shoal plan` says is what loading does.
#pragma once

#include <cstddef>
#include <memory>
#include <span>

#include "models/place/placement.h"

namespace shoal::models {

struct LoadOptions {
  bool use_mapping = true;      ///< where can_use_mapping() says so, for weights that are not repacked
  bool repack = true;           ///< into the layout that the device computes with fastest
  bool prefer_mapping = false;  ///< where both could be
  bool op_offload = true;       ///< will sessions have weights brought to devices? As in SessionOptions
};

/// Can the device use the weights where the file is mapped? Not a meta device, not one that cannot use host memory or
/// wants it aligned better than the tensors of the file are.
bool can_use_mapping(const Model& model, Device& device);
/// `bytes`, where the file is mapped, as memory of the device, if it can have all tensors there; else nullptr.
std::unique_ptr<Buffer> buffer_of_mapping(const Model& model, Device& device, std::span<std::byte> bytes);

struct WeightsPlacement {
  BufferType* type = nullptr;
  bool mapped = false;    ///< used where the file is mapped, if nothing has changed since; `type` else
  bool repacked = false;  ///< `type` is the device's own type for weights
};

/// Weights are repacked where the device has a type for that and they fit into its free memory with some to spare;
/// else they are used in the mapping, where that can be; else they are copied as they are. `tensors`: the weights of
/// this device. `before`: the devices before it in the order of the schedules that use them. Weights in host memory
/// that one of these would have brought to it for large batches (Device::offload_op) stay as they are, too, unless
/// LoadOptions::op_offload says that no session does that.
WeightsPlacement place_weights(const Model& model, Device& device, std::span<Tensor* const> tensors,
                               std::span<Device* const> before, const LoadOptions& options);

}  // namespace shoal::models
