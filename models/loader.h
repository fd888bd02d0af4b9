// Loading: from the mapped file straight to the devices. On a meta device every rank's shard is cut from the file's
// bytes by a thread of its own, so that no host or device ever holds the whole model a second time.
#pragma once

#include <cstddef>
#include <functional>

#include "devices/device.h"
#include "models/model.h"

namespace shoal::models {

/// Told how many bytes of how many are on their devices; called from one thread at a time, often.
using LoadProgress = std::function<void(size_t done, size_t total)>;

/// Allocates the weights on the device and fills them; blocking. On failure the model is as before.
void load_weights(Model& model, Device& device, const LoadProgress& progress = {});

}  // namespace shoal::models
