// Checks whether devices have room for a model before the model is loaded, and suggests remedies. Pure functions.
#pragma once

#include <span>
#include <string>

#include "models/session/model_plan.h"

namespace shoal::tools {

/// Throws DeviceError for the first device that has less free memory than it needs. The message contains both sizes and
/// a remedy.
void require_memory(std::span<const models::DeviceUse> uses);
/// Warning for a device whose mapped weights and allocations together exceed its free memory; "" if there is no such
/// device. The model then still runs, but at the speed of the disk.
std::string mapping_warning(std::span<const models::DeviceUse> uses);

}  // namespace shoal::tools
