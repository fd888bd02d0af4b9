// The machine that `shoal simulate` is asked for, and its devices.
#pragma once

#include <cstdint>
#include <optional>
#include <span>
#include <string>
#include <vector>

#include "machine/machine.h"
#include "models/place/placement.h"
#include "tools/bench/bench.h"

namespace shoal::tools {

inline constexpr int64_t kMostHosts = 64;

/// A machine's devices, so that placements and plans can be made for them.
class SimulatedMachine {
 public:
  explicit SimulatedMachine(machine::MachineModel model);
  const machine::MachineModel& model() const { return *model_; }
  std::shared_ptr<const machine::MachineModel> shared() const { return model_; }
  std::span<Device* const> devices() const { return devices_; }
  bool has(const std::string& name) const;
  /// How many of them there are without a host beside GPUs (tools::devices_to_use).
  size_t devices_to_use() const;
  /// "H200.0,H200.1": the first of these.
  std::string first(int64_t count) const;
  models::DeviceGroups groups(const DeviceList& list) const;
  /// A CPU of the machine that is none of the devices; nullptr: it has none.
  Device* host_beside(const models::DeviceGroups& groups) const;
  /// "@0,@1" -> "H200.0+H200.1,1:H200.0+1:H200.1": all devices of each of these hosts as a group; other lists as they
  /// are. Throws UsageError where there is no such host.
  std::string spell_out_hosts(const std::string& list) const;
  /// A list of devices in fewer words: "H200.0-3,1:H200.0-3", and groups of all devices of a host "@0,@1".
  std::string short_text(const DeviceList& list) const;

 private:
  /// "H200.0+H200.1"; "" where there is none.
  std::string of_host(int64_t host) const;

  std::shared_ptr<const machine::MachineModel> model_;
  std::vector<Device*> devices_;
};

/// "100gbit,20us" -> 12.5e9 bytes/s, 20e-6 s. Throws InvalidArgument that names the flag.
machine::Network parse_network(const std::string& flag, const std::string& text);

/// The machine of that name (machine::find_machine), as often as there are hosts. Throws UsageError where hosts and
/// network do not go together, and what finding it throws.
machine::MachineModel simulated_machine(const std::string& name, int64_t hosts,
                                        const std::optional<machine::Network>& network);

}  // namespace shoal::tools
