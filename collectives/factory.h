// The communicator factory that a family offers for its backends, under the name functions::kCommunicatorFactory. The
// family may come from a plug-in, which has its own copy of this folder. Therefore the program compares its class sizes
// with the plug-in's before it passes any object, as devices/plugin.h does for the classes of devices. If only these
// sizes differ, a program without meta devices can still use the plug-in's devices.
#pragma once

#include <span>

#include "collectives/communicator.h"
#include "devices/functions.h"
#include "devices/plugin.h"

namespace shoal::collectives {

/// The sizes of the classes that the program and a plug-in share, as one number.
constexpr uint64_t class_sizes() {
  return mixed_sizes({sizeof(Options), sizeof(Call), sizeof(FusedNorm), sizeof(Communicator),
                      sizeof(CommunicatorTraits), sizeof(CommunicatorFactory)});
}

/// Owned by the family. The first member is at the same place in every version. If its value is not the expected one,
/// the program reads no other member.
struct FamilyFactory {
  uint64_t class_sizes;  ///< class_sizes() as compiled into the family
  CommunicatorFactory make;
};
inline constexpr FunctionName<FamilyFactory*> kCommunicatorFactory{functions::kCommunicatorFactory};

/// The factory that the family offers; empty if it offers none. Throws a DeviceError that names the plug-in if its
/// class sizes differ.
CommunicatorFactory factory_of(const BackendReg& family);

/// The factory for the members of a meta device, by the first rule that applies:
/// - If one other process owns all members: an absent communicator (absent_communicator.h).
/// - If all members belong to one family that offers a factory: this factory.
/// - If the host cannot access the memory of a member: the staged communicator.
/// - With several processes (Options::processes): the mpi communicator.
/// - Otherwise: the host communicator.
CommunicatorFactory communicator_for(std::span<Device* const> members);

}  // namespace shoal::collectives
