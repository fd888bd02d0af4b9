// Whether devices have room for a model that is about to be loaded, and what to do where they have not. Pure functions.
#pragma once

#include <span>
#include <string>

#include "models/session/model_plan.h"

namespace shoal::tools {

/// Throws DeviceError for the first device that has less free memory than it needs: names both and the remedy.
void require_memory(std::span<const models::DeviceUse> uses);
/// What to say of a device whose mapped weights and allocations together are more than it has free: that works, at the
/// speed of the disk. Empty when there is none.
std::string mapping_warning(std::span<const models::DeviceUse> uses);

}  // namespace shoal::tools
