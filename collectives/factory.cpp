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
  const auto stages = [](std::span<Device* const> devices, const Options& options) {
    const std::string& name = options.implementation;
    const std::string& first = devices[0]->name();
    require<InvalidArgument>(name != "p2p" && name != "nccl",
                             "collectives by '{}' are for CUDA devices; use auto or staged for {} and the others", name,
                             first);
    const bool all_host =
        std::all_of(devices.begin(), devices.end(), [](Device* one) { return one->buffer_type().is_host(); });
    require<InvalidArgument>(
        name != "host" || all_host,
        "collectives by 'host' are for devices that compute in host memory; use auto or staged for "
        "{} and the others",
        first);
    return !all_host || name == "staged";
  };
  return {[stages](std::span<Backend* const> ranks, const Options& options) {
            return stages(devices_of(ranks), options) ? make_staged_communicator(ranks, options)
                                                      : make_host_communicator(ranks, options);
          },
          [stages](std::span<Device* const> devices, const Options& options) {
            return stages(devices, options) ? describe_staged_communicator(devices, options)
                                            : describe_host_communicator(devices, options);
          }};
}

}  // namespace shoal::collectives
