// Checks whether the system grants the threads that the program needs. If OpenMP cannot start a thread, OpenMP ends the
// process. So this check runs before the devices start their threads.
#pragma once

#include <span>

#include "devices/device.h"

namespace shoal::tools {

/// Number of threads that a model on these devices needs: `threads` for each CPU device (0: the default of the device),
/// plus the loading threads.
int threads_needed(std::span<Device* const> devices, int threads);

/// Starts `count` threads and ends them. Throws DeviceError with a remedy if the system does not start all threads.
void require_threads(int count);

}  // namespace shoal::tools
