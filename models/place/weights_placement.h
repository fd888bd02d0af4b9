// Decides where the weights of a device are stored: in the file's mapping, or in memory of the device, either repacked
// or unchanged. `shoal plan` and loading call the same function, so their results agree.
#pragma once

#include <cstddef>
#include <memory>
#include <span>

#include "models/place/placement.h"

namespace shoal::models {

struct LoadOptions {
  bool use_mapping = true;      ///< use weights in the mapping if can_use_mapping() is true and the weights are not
                                ///< repacked
  bool repack = true;           ///< convert weights to the device's fastest layout
  bool prefer_mapping = false;  ///< use the mapping instead of repacking if both are possible
  bool op_offload = true;       ///< sessions may copy weights to devices for large batches (SessionOptions::op_offload)
};

/// Whether the device can use the weights in the file's mapping. False for a meta device, for a device that cannot use
/// host memory, and for a device that needs a larger alignment than the file has.
bool can_use_mapping(const Model& model, Device& device);
/// Creates a Buffer of the device for the mapped `bytes`, without a copy. Returns nullptr if the device cannot use all
/// tensors in the mapping.
std::unique_ptr<Buffer> buffer_of_mapping(const Model& model, Device& device, std::span<std::byte> bytes);

struct WeightsPlacement {
  BufferType* type = nullptr;
  bool mapped = false;    ///< use the mapping; if loading cannot use the mapping, it copies the weights into memory of
                          ///< `type`
  bool repacked = false;  ///< `type` is Device::weights_type(), and weights are repacked into it
};

/// Chooses where the weights of a device are stored. `tensors` are the weights of this device. `before` are the devices
/// that precede this device in schedules. Weights are repacked if the device has a type for repacked weights and the
/// repacked weights fit into the device's free memory (minus a reserve if the device can use the mapping). Otherwise
/// the weights are used in the mapping if possible, or copied unchanged. If LoadOptions::op_offload is true, repacking
/// of weights in host memory has one more condition: no device in `before` would copy one of these weights for large
/// batches (Device::offload_op).
WeightsPlacement place_weights(const Model& model, Device& device, std::span<Tensor* const> tensors,
                               std::span<Device* const> before, const LoadOptions& options);

}  // namespace shoal::models
