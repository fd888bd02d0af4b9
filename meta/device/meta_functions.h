// The functions by name of the family "META" (devices/functions.h).
#pragma once

#include <span>

#include "devices/functions.h"

namespace shoal::meta {

/// Those of META besides split_buffer_type, which is in meta_family.cpp.
std::span<const FunctionEntry> meta_functions();

}  // namespace shoal::meta
