// The device of the plug-in in examples/plugin, where a test has it: CTest builds it against the installed package and
// names the file in SHOAL_TEST_PLUGIN. Programs that use it call shoal_enable_plugins().
#pragma once

#include <cstdlib>
#include <string>

#include "devices/device.h"

namespace shoal::test {

/// nullptr when SHOAL_TEST_PLUGIN is not set. A plug-in that is named and cannot be loaded is an error.
inline Device* plugin_device() {
  const char* file = std::getenv("SHOAL_TEST_PLUGIN");
  if (file == nullptr || *file == '\0') return nullptr;
  return Registry::instance().load(file).devices().front();
}

}  // namespace shoal::test
