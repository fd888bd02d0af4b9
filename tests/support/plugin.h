// The devices of a plug-in, for test programs that CTest also runs with a plug-in. The environment variable
// SHOAL_TEST_PLUGIN contains the path of the plug-in. The plug-in is examples/plugin, built with the installed package,
// or the emulated plug-in of tests/cuda. CMake must call shoal_enable_plugins() for each program that uses this header.
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
/// Empty if SHOAL_TEST_PLUGIN is not set. Throws if the plug-in cannot be loaded.
inline std::span<Device* const> plugin_devices() {
  if (!plugin_is_named()) return {};
  return Registry::instance().load(std::getenv("SHOAL_TEST_PLUGIN")).devices();
}
/// The first device of the plug-in; nullptr if there is no plug-in.
inline Device* plugin_device() {
  const auto devices = plugin_devices();
  return devices.empty() ? nullptr : devices.front();
}
/// Returns test device `number`. The test devices are the devices of the plug-in if the plug-in has several devices,
/// otherwise CPU devices.
inline Device& test_device(int number) {
  const auto devices = plugin_devices();
  if (devices.size() > 1) return *devices[static_cast<size_t>(number)];
  return Registry::instance().device("CPU" + std::to_string(number));
}

}  // namespace shoal::test
