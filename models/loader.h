// Loading: from the file to the devices in pieces of a megabyte, by loading_threads() threads. Each piece is
// read once and cut up for all devices that have some of it, so that no host or device ever holds the whole model, or
// one tensor of it, a second time.
#pragma once

#include <cstddef>
#include <functional>

#include "devices/device.h"
#include "models/model.h"

namespace shoal::models {

/// Threads that load onto so many devices: one for each, two for a single one.
constexpr int loading_threads(int devices) {
  return devices > 1 ? devices : 2;
}

/// Told how many bytes of how many are on their devices; called from one thread at a time, often.
using LoadProgress = std::function<void(size_t done, size_t total)>;

/// Allocates the weights on the device and fills them; blocking. On failure the model is as before. Throws
/// InvalidArgument when the file has become shorter since it was opened.
void load_weights(Model& model, Device& device, const LoadProgress& progress = {});

}  // namespace shoal::models
