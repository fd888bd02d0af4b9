#include "collectives/factory.h"

#include "graph/error.h"

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

}  // namespace shoal::collectives
