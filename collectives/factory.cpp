#include "collectives/factory.h"

#include <algorithm>

#include "base/error.h"

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

CommunicatorFactory communicator_for(std::span<Device* const> members) {
  const BackendReg& family = members.front()->reg();
  const bool alike = std::all_of(members.begin(), members.end(), [&](Device* one) { return &one->reg() == &family; });
  if (auto own = alike ? factory_of(family) : nullptr) return own;
  return [](std::span<Backend* const> ranks, const Options& options) {
    const std::string& name = options.implementation;
    require<InvalidArgument>(name != "p2p" && name != "nccl",
                             "collectives by '{}' are for CUDA devices; use auto or staged for {} and the others", name,
                             ranks[0]->name());
    const bool all_host =
        std::none_of(ranks.begin(), ranks.end(), [](Backend* rank) { return rank->has_own_memory(); });
    require<InvalidArgument>(
        name != "host" || all_host,
        "collectives by 'host' are for devices that compute in host memory; use auto or staged for "
        "{} and the others",
        ranks[0]->name());
    return all_host && name != "staged" ? make_host_communicator(ranks, options)
                                        : make_staged_communicator(ranks, options);
  };
}

}  // namespace shoal::collectives
