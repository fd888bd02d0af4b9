// The family "META" of the registry: meta devices made from text, "devices=CPU0,CPU1 split=3,1 axis=1". Every weight
// or cache whose axis is long enough is split on it by the ratio, others are mirrored.
#pragma once

#include "devices/device.h"

namespace shoal::meta {

/// The family, added to the registry at the first call. Programs call it once at start. Thread-safe.
BackendReg& family();

}  // namespace shoal::meta
