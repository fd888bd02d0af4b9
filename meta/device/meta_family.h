// The family "META" of the registry. This family creates meta devices from text such as "devices=CPU0,CPU1 split=3,1
// axis=1". Weights and caches are split on the axis by the ratio if the axis is long enough, and mirrored otherwise.
#pragma once

#include "devices/device.h"

namespace shoal::meta {

/// Returns the family. The first call adds the family to the registry. Programs call this function once at start.
/// Thread-safe.
BackendReg& family();

}  // namespace shoal::meta
