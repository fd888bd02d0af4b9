// Where the weights of a device lie: in the file's mapping, or in memory of the device, repacked or as they are. One
// function of model, devices and options decides, so that what `shoal plan` says is what loading does.
#pragma once

#include <span>

#include "models/loader.h"
#include "models/placement.h"

namespace shoal::models {

struct WeightsHome {
  BufferType* type = nullptr;
  bool mapped = false;    ///< used where the file is mapped, if nothing has changed since; `type` else
  bool repacked = false;  ///< `type` is the device's own type for weights
};

/// Weights are repacked where the device has a type for that and they fit into its free memory with some to spare;
/// else they are used in the mapping, where that can be; else they are copied as they are. `tensors`: the weights of
/// this device. `before`: the devices before it in the order of the schedules that use them. Weights in host memory
/// that one of these would have brought to it for large batches (Device::offload_op) stay as they are, too, unless
/// LoadOptions::op_offload says that no session does that.
WeightsHome weights_home(const Model& model, Device& device, std::span<Tensor* const> tensors,
                         std::span<Device* const> before, const LoadOptions& options);

}  // namespace shoal::models
