// The family "SIM" of simulated devices. They have a name, a type and a size of memory, so that placements, plans and
// predictions can be made for them as for real devices (`shoal simulate`). Their speed is part of a machine model
// (machine/machine.h). They support every op, but neither allocate nor run anything.
//
// Devices live as long as the family. Thread-safe.
#pragma once

#include <deque>
#include <memory>
#include <mutex>
#include <span>
#include <string>
#include <vector>

#include "devices/device.h"

namespace shoal::sim {

struct SimSpec {
  std::string name;         ///< "H200.0"
  std::string description;  ///< "simulated H200, 141 GB"
  DeviceType type = DeviceType::kGpu;
  size_t memory = 0;  ///< total bytes
  bool operator==(const SimSpec&) const = default;
};

class SimFamily final : public BackendReg {
 public:
  std::string name() const override { return "SIM"; }
  std::span<Device* const> devices() const override;
  bool is_listed() const override { return false; }
  /// Returns the device with this spec, or creates it. A new device replaces an older simulated device
  /// of the same name. The older one lives on but is no longer listed. If a real device has the name, the registry
  /// finds the real device. Throws InvalidArgument if the name or the memory is missing.
  Device& provide(const SimSpec& spec);

 private:
  mutable std::mutex mutex_;
  std::vector<std::pair<SimSpec, std::unique_ptr<Device>>> owned_;
  std::deque<std::vector<Device*>> lists_{{}};  ///< the last list is current; earlier lists may still be in use
};

/// The SIM family of the registry. The first call registers it.
SimFamily& family();

}  // namespace shoal::sim
