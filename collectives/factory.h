// What a family offers to connect its backends with, by the name functions::kCommunicatorFactory. The family may come
// from a plug-in, which has its own copy of this folder: before any of these classes is passed to it, their sizes are
// compared with those of its compiler, as devices/plugin.h does for the classes of devices. A program without meta
// devices can use the rest of such a plug-in.
#pragma once

#include <span>

#include "collectives/communicator.h"
#include "devices/functions.h"
#include "devices/plugin.h"

namespace shoal::collectives {

/// Of the classes that both sides use, as one number.
constexpr uint64_t class_sizes() {
  return mixed_sizes({sizeof(Options), sizeof(Call), sizeof(FusedNorm), sizeof(Communicator),
                      sizeof(CommunicatorTraits), sizeof(CommunicatorFactory)});
}

/// Owned by the family. The first member stays where it is in every version, and nothing else is read when it differs.
struct FamilyFactory {
  uint64_t class_sizes;  ///< class_sizes() of the family's compiler
  CommunicatorFactory make;
};
inline constexpr FunctionName<FamilyFactory*> kCommunicatorFactory{functions::kCommunicatorFactory};

/// Empty where the family offers none. Throws DeviceError, naming the plug-in, when its classes have other sizes.
CommunicatorFactory factory_of(const BackendReg& family);

/// What connects the members of a meta device: their own when all are of one family that offers one; else the host
/// communicator, the mpi one where there are several processes (Options::processes), or the staged one where a member has
/// memory that the host cannot use. Of members that are all in one other process, which works at them alone: what stands
/// for theirs (absent_communicator.h).
CommunicatorFactory communicator_for(std::span<Device* const> members);

}  // namespace shoal::collectives
