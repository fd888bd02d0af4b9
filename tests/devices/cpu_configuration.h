// Replaces the CPU devices for the lifetime of an object.
#pragma once

#include <string_view>

#include "devices/cpu/cpu_device.h"

namespace shoal::test {

class CpuConfiguration {
 public:
  explicit CpuConfiguration(std::string_view params) { cpu::configure(params); }
  ~CpuConfiguration() { cpu::configure({}); }
  CpuConfiguration(const CpuConfiguration&) = delete;
  CpuConfiguration& operator=(const CpuConfiguration&) = delete;
};

}  // namespace shoal::test
