// A device family can offer a communicator factory for its backends, under the name functions::kCommunicatorFactory.
// The family may come from a plug-in, which has its own compiled copy of this folder. Therefore the program compares
// its class sizes with the plug-in's class sizes before it passes any object to the plug-in. devices/plugin.h makes the
// same check for the classes of devices. If only the class sizes of this folder differ, a program without meta devices
// can still use the plug-in's devices.
#pragma once

#include <span>

#include "collectives/communicator.h"
#include "devices/functions.h"
#include "devices/plugin.h"

namespace shoal::collectives {

/// One number computed from the sizes of all classes that the program and a plug-in share.
constexpr uint64_t class_sizes() {
  return mixed_sizes({sizeof(Options), sizeof(Call), sizeof(FusedNorm), sizeof(Communicator),
                      sizeof(CommunicatorTraits), sizeof(CommunicatorFactory)});
}

/// The family owns this object. `class_sizes` is at the same offset in every version. If `class_sizes` differs from the
/// program's class_sizes(), the program reads no other member.
struct FamilyFactory {
  uint64_t class_sizes;  ///< value of class_sizes() compiled into the family
  CommunicatorFactory make;
};
inline constexpr FunctionName<FamilyFactory*> kCommunicatorFactory{functions::kCommunicatorFactory};

/// The factory of the family; empty if the family offers none. If the class sizes differ, throws a DeviceError that
/// names the plug-in.
CommunicatorFactory factory_of(const BackendReg& family);

/// The factory for the members of a meta device, by the first rule that applies:
/// - If one other process owns all members: an absent communicator (absent_communicator.h).
/// - If all members belong to one family that offers a factory: this factory.
/// - If the host cannot access the memory of a member: the staged communicator.
/// - With several processes (Options::processes): the mpi communicator.
/// - Otherwise: the host communicator.
CommunicatorFactory communicator_for(std::span<Device* const> members);

}  // namespace shoal::collectives
