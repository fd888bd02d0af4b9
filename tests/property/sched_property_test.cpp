// Random graphs x random places of weights, caches and nodes on 1-4 backends (CPU, META, plug-in): a scheduler gives
// what one device gives. SHOAL_PROPERTY_CASES and SHOAL_PROPERTY_SEED as in meta_property_test.cpp.
#include <fmt/format.h>
#include <gtest/gtest.h>

#include <cstdlib>
#include <random>

#include "devices/cpu/cpu_device.h"
#include "meta/meta_device.h"
#include "tests/support/plugin.h"
#include "tests/support/sched_case.h"

namespace shoal::test {
namespace {

constexpr int kParts = 10;  // so that ctest can run parts at the same time

int64_t from_environment(const char* name, int64_t otherwise) {
  const char* text = std::getenv(name);
  return text == nullptr ? otherwise : std::atoll(text);
}

Device& cpu_device(int index) {
  return Registry::instance().device("CPU" + std::to_string(index));
}

meta::SplitStateCallback callback_of(const RandomCase& one) {
  return [&one](const Tensor& tensor) -> meta::SplitState {
    const auto found = one.layouts.find(tensor.name);
    if (found == one.layouts.end() || !found->second.is_split()) return meta::SplitState::mirrored();
    return meta::SplitState::split(found->second.axis, found->second.partition);
  };
}

/// Up to four backends, the last of them a CPU; the first CPU devices are behind the meta device.
class Backends {
 public:
  Backends(const RandomCase& one, uint64_t seed) {
    std::mt19937_64 random(seed);
    std::vector<Device*> devices;
    if (random() % 4 != 0) {
      std::vector<Device*> members;
      for (int i = 0; i < one.ranks; ++i) members.push_back(&test_device(i));
      meta_ = meta::MetaDevice::create(members, callback_of(one));
      devices.push_back(meta_.get());
    }
    Device* plugin = plugin_device();
    const int simple = 1 + static_cast<int>(random() % (plugin != nullptr ? 2 : 3));
    if (plugin != nullptr) devices.insert(devices.begin() + static_cast<int>(random() % (devices.size() + 1)), plugin);
    for (int i = 0; i < simple; ++i) devices.push_back(&cpu_device(16 + i));
    for (Device* device : devices) owned_.push_back(device->init());
    for (const auto& backend : owned_) backends_.push_back(backend.get());
  }
  std::span<Backend* const> all() const { return backends_; }

 private:
  std::unique_ptr<meta::MetaDevice> meta_;
  std::vector<std::unique_ptr<Backend>> owned_;
  std::vector<Backend*> backends_;
};

std::string check(const RandomCase& one) {
  const Backends backends(one, one.seed * 7 + 1);
  return check_scheduled(one, backends.all(), cpu_device(19), one.seed * 13 + 5);
}

class SchedProperty : public testing::TestWithParam<int> {
 protected:
  void SetUp() override { cpu::configure("devices=20,threads=1"); }
};

void run_seed(uint64_t seed) {
  const RandomCase one = random_case(seed);
  const std::string what = check(one);
  if (what.empty()) return;
  const RandomCase small = shrink(one, [&](const RandomCase& next) { return !check(next).empty(); });
  ADD_FAILURE() << "case " << seed << " differs: " << what << "\nshrunk: " << check(small) << "\n"
                << to_string(small) << "run it again: SHOAL_PROPERTY_SEED=" << seed;
}

TEST_P(SchedProperty, EqualsOneDevice) {
  const int64_t only = from_environment("SHOAL_PROPERTY_SEED", -1);
  if (only >= 0) {
    if (only % kParts == GetParam()) run_seed(static_cast<uint64_t>(only));
    return;
  }
  const int64_t cases = from_environment("SHOAL_PROPERTY_CASES", 2000) / 2;
  for (int64_t seed = GetParam(); seed < cases && !HasFailure(); seed += kParts) {
    run_seed(static_cast<uint64_t>(seed));
  }
}

INSTANTIATE_TEST_SUITE_P(Random, SchedProperty, testing::Range(0, kParts));

}  // namespace
}  // namespace shoal::test
