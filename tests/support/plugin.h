// Devices of a plug-in, for tests that CTest runs with a plug-in. SHOAL_TEST_PLUGIN names the plug-in's file
// (examples/plugin, built against the installed package, or the emulated plug-in of tests/cuda). Programs that use this
// header call shoal_enable_plugins().
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
/// Empty if SHOAL_TEST_PLUGIN is not set. Throws if the named plug-in cannot be loaded.
inline std::span<Device* const> plugin_devices() {
  if (!plugin_is_named()) return {};
  return Registry::instance().load(std::getenv("SHOAL_TEST_PLUGIN")).devices();
}
/// The first plug-in device, or nullptr.
inline Device* plugin_device() {
  const auto devices = plugin_devices();
  return devices.empty() ? nullptr : devices.front();
}
/// Test device `number`: a device of the plug-in if the plug-in has several devices, otherwise a CPU device.
inline Device& test_device(int number) {
  const auto devices = plugin_devices();
  if (devices.size() > 1) return *devices[static_cast<size_t>(number)];
  return Registry::instance().device("CPU" + std::to_string(number));
}

}  // namespace shoal::test
