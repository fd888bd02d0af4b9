#include "collectives/factory.h"

#include <algorithm>

#include "base/error.h"
#include "collectives/absent_communicator.h"
#include "processes/remote_device.h"

namespace shoal::collectives {

CommunicatorFactory factory_of(const BackendReg& family) {
  const FamilyFactory* offered = find_function(family, kCommunicatorFactory);
  if (offered == nullptr) return {};
  if (offered->class_sizes != class_sizes()) {
    const std::string file = Registry::instance().file_of(family).string();
    fail<DeviceError>("[{} {}] {}", file.empty() ? "family" : "plug-in", file.empty() ? family.name() : file,
                      kOtherSizes);
  }
  return offered->make;
}

namespace {

enum class Choice : uint8_t { kHost, kMpi, kStaged };

/// Returns the requested implementation. Throws InvalidArgument with the reason if this implementation cannot be used.
Choice choose(std::span<Device* const> devices, const Options& options) {
  const std::string& name = options.implementation;
  const std::string first = common_name(*devices[0], options.processes);
  const bool are_several = options.processes != nullptr;
  require<InvalidArgument>(name != "p2p" && name != "nccl",
                           "collectives by '{}' are for CUDA devices, but the mesh contains {}; use auto or staged",
                           name, first);
  require<InvalidArgument>(name != "mpi" || are_several,
                           "collectives by 'mpi' are for devices of several processes, but this is the only process; "
                           "start several processes (mpirun), or use auto or host");
  require<InvalidArgument>(name != "host" || !are_several,
                           "collectives by 'host' are for devices of one process; use auto or mpi for the mesh of {}",
                           first);
  const bool all_host = std::all_of(devices.begin(), devices.end(), [](Device* one) { return has_host_memory(*one); });
  require<InvalidArgument>((name != "host" && name != "mpi") || all_host,
                           "collectives by '{}' are for devices that compute in host memory; use auto or staged for "
                           "the mesh of {}",
                           name, first);
  if (!all_host || name == "staged") return Choice::kStaged;
  return are_several ? Choice::kMpi : Choice::kHost;
}

/// The factory of the family to which all members belong. Empty if there is no such family or if the family offers no
/// factory.
CommunicatorFactory own_of(std::span<Device* const> members) {
  const std::string name = family_name(*members.front());
  const BackendReg* family = nullptr;  // family of the local members; if all members are remote: this process's family
                                       // with the name `name`
  for (Device* member : members) {
    if (family_name(*member) != name) return {};
    if (is_remote(*member)) continue;
    if (family != nullptr && family != &member->reg()) return {};
    family = &member->reg();
  }
  if (family == nullptr) family = Registry::instance().find_family(name);
  return family != nullptr ? factory_of(*family) : CommunicatorFactory();
}

/// The factory for members that belong to this process or to several processes.
CommunicatorFactory factory_here(std::span<Device* const> members) {
  if (auto own = own_of(members)) return own;
  return {[](std::span<Backend* const> ranks, const Options& options) {
            const Choice choice = choose(devices_of(ranks), options);
            if (choice == Choice::kMpi) return make_mpi_communicator(ranks, options);
            return choice == Choice::kStaged ? make_staged_communicator(ranks, options)
                                             : make_host_communicator(ranks, options);
          },
          [](std::span<Device* const> devices, const Options& options) {
            const Choice choice = choose(devices, options);
            if (choice == Choice::kMpi) return describe_mpi_communicator(devices, options);
            return choice == Choice::kStaged ? describe_staged_communicator(devices, options)
                                             : describe_host_communicator(devices, options);
          }};
}

}  // namespace

CommunicatorFactory communicator_for(std::span<Device* const> members) {
  require<InvalidArgument>(!members.empty() && std::ranges::find(members, nullptr) == members.end(),
                           "a communicator needs at least one device; no device may be null");
  return are_absent(members) ? absent_factory(factory_here(members)) : factory_here(members);
}

}  // namespace shoal::collectives
