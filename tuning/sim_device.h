// The family "SIM" of simulated devices. A simulated device has a name, a type and a memory size. So it works in
// placements, plans and predictions like a real device (`shoal simulate`). Its speed is part of a machine model
// (machine/machine.h). It supports every op, but it cannot allocate memory or run a graph.
//
// A device exists until its family is destroyed. Thread-safe.
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
  std::string name;         ///< such as "H200.0"
  std::string description;  ///< such as "simulated H200, 141 GB"
  DeviceType type = DeviceType::kGpu;
  size_t memory = 0;  ///< total bytes
  bool operator==(const SimSpec&) const = default;
};

class SimFamily final : public BackendReg {
 public:
  std::string name() const override { return "SIM"; }
  std::span<Device* const> devices() const override;
  bool is_listed() const override { return false; }
  /// Returns the device with this spec, or creates it. If the list already contains a simulated device of the same
  /// name, the new device replaces this older device in the list. The older device still exists. If a real device has
  /// the same name, the registry finds the real device. Throws InvalidArgument if the name is empty or the memory is 0.
  Device& provide(const SimSpec& spec);

 private:
  mutable std::mutex mutex_;
  std::vector<std::pair<SimSpec, std::unique_ptr<Device>>> owned_;
  std::deque<std::vector<Device*>> lists_{{}};  ///< devices() returns the last list; callers may still use earlier
                                                ///< lists
};

/// Returns the SIM family. The first call adds the family to the registry.
SimFamily& family();

}  // namespace shoal::sim
