// Random graphs run with a scheduler over 1 to 5 backends. The backends can be a meta device, a plug-in's device, a
// device with its own memory, and CPU devices. Weights, caches and some nodes are assigned to random backends. The
// scheduler must give the same results as one device.
#include <gtest/gtest.h>

#include <random>

#include "meta/meta.h"
#include "tests/sched/proxy.h"
#include "tests/support/plugin.h"
#include "tests/support/property.h"
#include "tests/support/sched_case.h"

namespace shoal::test {
namespace {

constexpr int kSchedulerParts = 10;  // number of parts of the test; ctest can run the parts in parallel

Device& cpu_device(int index) {
  return Registry::instance().device("CPU" + std::to_string(index));
}

/// Up to five backends. The last backend is a CPU. If there is a meta device, its members are the first test devices.
class Backends {
 public:
  Backends(const RandomCase& one, uint64_t seed) {
    std::mt19937_64 random(seed);
    std::vector<Device*> devices;
    if (random() % 4 != 0) {
      std::vector<Device*> members;
      for (int i = 0; i < one.ranks; ++i) members.push_back(&test_device(i));
      meta_ = meta_device(one, members);
      devices.push_back(meta_.get());
    }
    Device* plugin = plugin_device();
    const int simple = 1 + static_cast<int>(random() % (plugin != nullptr ? 2 : 3));
    if (plugin != nullptr) devices.insert(devices.begin() + static_cast<int>(random() % (devices.size() + 1)), plugin);
    if (random() % 2 == 0) devices.push_back(&own_memory_);
    for (int i = 0; i < simple; ++i) devices.push_back(&cpu_device(16 + i));
    for (Device* device : devices) owned_.push_back(device->init());
    for (const auto& backend : owned_) backends_.push_back(backend.get());
  }
  std::span<Backend* const> all() const { return backends_; }

 private:
  std::unique_ptr<meta::MetaDevice> meta_;
  ProxyDevice own_memory_{cpu_device(18)};
  std::vector<std::unique_ptr<Backend>> owned_;
  std::vector<Backend*> backends_;
};

std::string check_scheduling(const RandomCase& one) {
  const Backends backends(one, one.seed * 7 + 1);
  return check_scheduled(one, backends.all(), cpu_device(19), one.seed * 13 + 5);
}

class SchedProperty : public testing::TestWithParam<int> {};

TEST_P(SchedProperty, SchedulerGivesSameResultsAsOneDevice) {
  check_property({.draw = random_case, .check = check_scheduling, .share = 0.5}, GetParam(), kSchedulerParts);
}

INSTANTIATE_TEST_SUITE_P(Random, SchedProperty, testing::Range(0, kSchedulerParts));

}  // namespace
}  // namespace shoal::test
