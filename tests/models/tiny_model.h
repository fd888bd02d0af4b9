// The repository's small model on any number of CPU devices, for tests.
#pragma once

#include <gtest/gtest.h>

#include <memory>
#include <string>
#include <vector>

#include "devices/cpu/cpu_device.h"
#include "models/place/placement.h"
#include "models/session/loader.h"
#include "models/session/session.h"
#include "tests/support/model_files.h"
#include "tests/support/plugin.h"

namespace shoal::models {

/// Ids of "But the LORD is in the heavens, and" in the small model's vocabulary.
inline const std::vector<int32_t> kPrompt{1, 527, 261, 345, 340, 290, 261, 743, 959, 967, 270};

/// Path of the small model with weights of `type`, such as "q8_0". Returns "" if the file is neither in the repository
/// nor in SHOAL_MODELS_DIR.
inline std::string tiny_model_path(const std::string& type) {
  return test::model_file("tiny-kjv-5m-" + type + ".gguf");
}

/// Returns the first `count` of eight CPU devices with one thread each, or `count` devices of the plug-in under test.
inline std::vector<Device*> cpu_devices(int count) {
  static const bool configured = (cpu::configure("devices=8,threads=1"), true);
  EXPECT_TRUE(configured);
  std::vector<Device*> devices;
  for (int i = 0; i < count; ++i) devices.push_back(&test::test_device(i));
  return devices;
}

/// Limits the devices of cpu_devices() while this object exists, for example to "max_size=1M" or "memory=8M".
class LimitedCpuDevices {
 public:
  explicit LimitedCpuDevices(const std::string& limit) {
    cpu_devices(1);
    cpu::configure("devices=8,threads=1," + limit);
  }
  ~LimitedCpuDevices() { cpu::configure("devices=8,threads=1"); }
  LimitedCpuDevices(const LimitedCpuDevices&) = delete;
  LimitedCpuDevices& operator=(const LimitedCpuDevices&) = delete;
};

/// Divides consecutive CPU devices into groups. Group i has sizes[i] devices.
inline DeviceGroups cpu_groups(const std::vector<int>& sizes) {
  int next = 0;
  for (int size : sizes) next += size;
  const std::vector<Device*> devices = cpu_devices(next);
  DeviceGroups groups;
  next = 0;
  for (int size : sizes) {
    groups.emplace_back(devices.begin() + next, devices.begin() + next + size);
    next += size;
  }
  return groups;
}

/// A model loaded on some devices.
struct LoadedModel {
  LoadedModel(const std::string& path, int devices, const std::string& ratio = {}, const SessionOptions& options = {})
      : LoadedModel(path, cpu_groups({devices}), {ratio, 1}, options) {}
  LoadedModel(const std::string& path, const DeviceGroups& groups, const PlacementOptions& where,
              const SessionOptions& options = {})
      : model(open_model(path)), placement(*model, groups, where) {
    load_weights(*model, placement);
    session = std::make_unique<Session>(*model, placement, placement.init(), options);
  }
  ~LoadedModel() {
    session.reset();
    unload_weights(*model);
  }

  std::unique_ptr<Model> model;
  Placement placement;
  std::unique_ptr<Session> session;
};

}  // namespace shoal::models
