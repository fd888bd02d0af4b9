// The family "SIM": devices that do not exist. They have a name, a type and memory of a size, so that placements, plans
// and predictions are made for them as for any others (`shoal simulate`); how fast they are is the business of a
// machine model (machine/machine.h). They say yes to every op, and neither allocate nor run anything.
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
  size_t memory = 0;  ///< bytes in all
  bool operator==(const SimSpec&) const = default;
};

class SimFamily final : public BackendReg {
 public:
  std::string name() const override { return "SIM"; }
  std::span<Device* const> devices() const override;
  bool is_listed() const override { return false; }
  /// The device that is as told: the one there is, or a new one, which takes the name from another simulated one (that
  /// lives on, but is not found any more). A real device may have the same name: the registry finds the real one.
  /// Throws InvalidArgument where there is no name or memory.
  Device& provide(const SimSpec& spec);

 private:
  mutable std::mutex mutex_;
  std::vector<std::pair<SimSpec, std::unique_ptr<Device>>> owned_;
  std::deque<std::vector<Device*>> lists_{{}};  ///< the latest last; earlier ones may be in use
};

/// The one of the registry, which gets it with the first call.
SimFamily& family();

}  // namespace shoal::sim
