// Devices of a plug-in, where a test has one: CTest names its file in SHOAL_TEST_PLUGIN (that of examples/plugin, built
// against the installed package, or the emulated one of tests/cuda). Programs that use it call shoal_enable_plugins().
#pragma once

#include <cstdlib>
#include <span>
#include <string>

#include "devices/device.h"

namespace shoal::test {

inline bool plugin_is_named() {
  const char* file = std::getenv("SHOAL_TEST_PLUGIN");
  return file != nullptr && *file != '\0';
}
/// None when SHOAL_TEST_PLUGIN is not set. A plug-in that is named and cannot be loaded is an error.
inline std::span<Device* const> plugin_devices() {
  if (!plugin_is_named()) return {};
  return Registry::instance().load(std::getenv("SHOAL_TEST_PLUGIN")).devices();
}
/// The first of them, or nullptr.
inline Device* plugin_device() {
  const auto devices = plugin_devices();
  return devices.empty() ? nullptr : devices.front();
}
/// Of the devices to test with: those of a plug-in that has several, else the CPU devices.
inline Device& test_device(int number) {
  const auto devices = plugin_devices();
  if (devices.size() > 1) return *devices[static_cast<size_t>(number)];
  return Registry::instance().device("CPU" + std::to_string(number));
}

}  // namespace shoal::test
