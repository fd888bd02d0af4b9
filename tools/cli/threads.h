// Whether the system lets the program have the threads it needs. OpenMP ends the process where it does not get one, so
// this is tried before the devices start theirs.
#pragma once

#include <span>

#include "devices/device.h"

namespace shoal::tools {

/// Threads that a model on these devices takes: `threads` for each CPU device, 0: its default, and those that load.
int threads_needed(std::span<Device* const> devices, int threads);

/// Starts that many threads and ends them. Throws DeviceError with the remedy when not all can be had.
void require_threads(int count);

}  // namespace shoal::tools
