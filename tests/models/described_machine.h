// Machines whose predictions can be computed by hand. A product takes a fixed time per weight element and column. Each
// collective takes a fixed time. By default, all other work takes no time.
#pragma once

#include <fmt/format.h>

#include <string>
#include <vector>

#include "machine/machine.h"

namespace shoal::models {

/// Creates a machine with the devices CPU0, CPU1, and so on. seconds[i] is the time of device i per weight element and
/// column of a product. Each device is a domain with one core. Each collective takes `latency` seconds.
inline machine::MachineModel described_machine(const std::vector<double>& seconds, double latency = 1e-6) {
  constexpr double kEndless = 1e30;
  machine::MachineModel machine;
  machine.name = "described";
  machine.copy_latency = 0;
  machine.copy_bandwidth = kEndless;
  for (size_t i = 0; i < seconds.size(); ++i) {
    machine.domains.push_back({fmt::format("domain {}", i), 0, 0});
    machine::DeviceModel device;
    device.name = fmt::format("CPU{}", i);
    device.identity = fmt::format("{} s", seconds[i]);
    device.domain = static_cast<int>(i);
    device.memory = size_t{1} << 40;
    device.bandwidth = device.activation_bandwidth = device.attention_rate = device.attention_bandwidth = kEndless;
    for (int dtype = 0; dtype < kDTypeCount; ++dtype) {
      const std::string name(name_of(static_cast<DType>(dtype)));
      device.products[name].streamed = {{1, seconds[i]}};
    }
    machine.devices.push_back(device);
  }
  machine.algorithms.push_back({"described", false, latency, 0, kEndless});
  return machine;
}

}  // namespace shoal::models
