// Decides where the weights of a device are stored: in the file's mapping, or in memory of the device, either repacked
// or unchanged. `shoal plan` and loading call the same function, so their results agree.
#pragma once

#include <cstddef>
#include <memory>
#include <span>

#include "models/place/placement.h"

namespace shoal::models {

struct LoadOptions {
  bool use_mapping = true;      ///< use weights in the mapping if can_use_mapping() and they are not repacked
  bool repack = true;           ///< convert weights to the device's fastest layout
  bool prefer_mapping = false;  ///< prefer the mapping if repacking is also possible
  bool op_offload = true;       ///< sessions may copy weights to devices for large batches (SessionOptions::op_offload)
};

/// Whether the device can use the weights in the file's mapping. False for a meta device, for a device that cannot use
/// host memory, and for a device that needs a larger alignment than the file has.
bool can_use_mapping(const Model& model, Device& device);
/// Wraps the mapped `bytes` as memory of the device. Returns nullptr if the device cannot use all tensors in the
/// mapping.
std::unique_ptr<Buffer> buffer_of_mapping(const Model& model, Device& device, std::span<std::byte> bytes);

struct WeightsPlacement {
  BufferType* type = nullptr;
  bool mapped = false;    ///< use the mapping; if that is impossible when loading, copy into memory of `type`
  bool repacked = false;  ///< `type` is Device::weights_type(), and weights are repacked into it
};

/// Weights are repacked if the device has a type for repacked weights and the repacked weights fit into its free memory
/// with a reserve. Otherwise they are used in the mapping if possible, or copied unchanged. `tensors`: the weights of
/// this device. `before`: the devices that come before this device in schedules. Weights in host memory also stay
/// unchanged if one of the `before` devices would copy them for large batches (Device::offload_op), unless
/// LoadOptions::op_offload is false.
WeightsPlacement place_weights(const Model& model, Device& device, std::span<Tensor* const> tensors,
                               std::span<Device* const> before, const LoadOptions& options);

}  // namespace shoal::models
