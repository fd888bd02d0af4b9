// The functions by name of the family "META" (devices/functions.h), and what connects the members of a meta device.
#pragma once

#include <span>

#include "collectives/factory.h"

namespace shoal::meta {

/// The members' own when all are of one family that offers one; else the host communicator, or the staged one where a
/// member has memory that the host cannot use.
collectives::CommunicatorFactory communicator_for(std::span<Device* const> members);

/// Those of META besides split_buffer_type, which is in meta_family.cpp.
std::span<const FunctionEntry> meta_functions();

}  // namespace shoal::meta
