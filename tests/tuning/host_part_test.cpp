// What stays on the host where devices have no room: as little as possible, and what is fastest.
#include "tuning/host_part.h"

#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include "base/error.h"
#include "machine/machine.h"
#include "tests/models/hollow_model.h"
#include "tests/support/temporary.h"
#include "tuning/recommend.h"
#include "tuning/sim_device.h"

namespace shoal::tuning {
namespace {

using namespace models;

constexpr size_t kMiB = size_t{1} << 20;

/// Two GPUs of this memory and a host that has enough.
struct Ground {
  explicit Ground(size_t mib, bool experts = true, size_t host_mib = 4096) {
    HollowModel hollow(6, 512, experts ? 256 : 4096, 8, 4, 4096);
    hollow.dtype = q4_0();
    if (experts) hollow.h.experts = 16, hollow.h.experts_used = 2;
    const test::TemporaryFile file("hollow.gguf");
    hollow.write(file.path);
    model = open_model(file.path);
    const std::string text = fmt::format(
        R"({{"version": 1, "copy_latency": 1e-6, "copy_bandwidth": 1e10, "devices": [
            {{"name": "HP", "type": "GPU", "count": 2, "memory": {}, "bandwidth": 1e12, "op_seconds": 1e-7,
              "rates": {{"default": 1e14}}}},
            {{"name": "HH", "type": "CPU", "memory": {}, "bandwidth": 1e10, "op_seconds": 1e-7,
              "rates": {{"default": 1e12}}}}],
            "algorithms": [{{"name": "a", "latency": 1e-6, "bandwidth": 1e10}}]}})",
        mib * kMiB, host_mib * kMiB);
    machine = machine::parse_machine(text, "test");
    for (const machine::DeviceModel& device : machine.devices) {
      Device& made = sim::family().provide({device.name, "simulated", device.type, device.memory});
      (device.type == DeviceType::kCpu ? host : devices.emplace_back()) = &made;
    }
  }

  Scenario scenario() const {
    PlacementOptions options;
    options.host = host;
    return {*model, machine, options, {.context = 256, .batch = 64}, {.use_mapping = false}, {64, 16, 0}};
  }
  Candidate as_one() const { return {{devices}, SplitMode::kTensor, {}}; }
  Candidate by_layer() const { return {{{devices[0]}, {devices[1]}}, SplitMode::kLayer, {}}; }

  std::unique_ptr<Model> model;
  machine::MachineModel machine;
  std::vector<Device*> devices;
  Device* host = nullptr;
};

/// The same with a layer less on the host.
std::vector<HostPart> with_less(const HostPart& part, int64_t layers) {
  if (part.device_layers < 0) return {{-1, part.expert_layers - 1}};
  if (part.device_layers > layers) return {{-1, part.expert_layers}};
  return {{part.device_layers + 1, part.expert_layers}};
}

TEST(HostPart, IsAsLittleAsHasToBe) {
  size_t found = 0;
  for (const bool experts : {true, false}) {
    for (const size_t mib : {5, 6, 8, 10, 12, 14}) {
      const Ground ground(mib, experts);
      const Scenario scenario = ground.scenario();
      for (const Candidate& way : {ground.as_one(), ground.by_layer()}) {
        for (const Candidate& candidate : host_parts(scenario, std::span(&way, 1), {})) {
          ++found;
          SCOPED_TRACE(fmt::format("{} MiB, {}", mib, candidate.name()));
          EXPECT_EQ(candidate.mode, way.mode);
          EXPECT_TRUE(scenario.predict(candidate).fits);
          for (const HostPart& part : with_less(candidate.host, 6)) {
            Candidate less = candidate;
            less.host = part;
            // Whatever the shares: those of the layers are for this part.
            for (int first = 0; first <= 6; ++first) {
              if (way.mode == SplitMode::kLayer)
                less.shares = {static_cast<double>(first), static_cast<double>(6 - first)};
              EXPECT_FALSE(scenario.predict(less).fits) << less.name();
            }
          }
        }
      }
    }
  }
  EXPECT_GT(found, 12u) << "else the sizes show nothing";
}

TEST(HostPart, LeavesTheMarginFree) {
  const Ground ground(12);
  const Candidate way = ground.as_one();
  const auto layers_with = [&](size_t margin) {
    const auto found = host_parts(ground.scenario(), std::span(&way, 1), {.margin = margin});
    return found.empty() ? -1 : found.front().host.expert_layers;
  };
  EXPECT_GT(layers_with(4 * kMiB), layers_with(0));
  EXPECT_EQ(layers_with(64 * kMiB), -1) << "more than there is";
}

TEST(HostPart, NeedsAHostWithRoom) {
  const Ground ground(8, true, 8);
  const Candidate way = ground.as_one();
  EXPECT_TRUE(host_parts(ground.scenario(), std::span(&way, 1), {}).empty());
}

TEST(HostPart, IsRecommendedWhereNothingElseFits) {
  const Ground small(10), large(256);
  const Recommendation roomy = recommend(large.scenario(), {large.devices});
  ASSERT_TRUE(roomy.best);
  for (const Prediction& one : roomy.candidates) EXPECT_TRUE(one.candidate.host.empty()) << one.candidate.name();
  const Recommendation tight = recommend(small.scenario(), {small.devices});
  ASSERT_TRUE(tight.best) << "the host has room";
  const Prediction& best = tight.candidates[*tight.best];
  EXPECT_GT(best.candidate.host.expert_layers, 0) << "of which a token uses few";
  EXPECT_THAT(best.candidate.name(), ::testing::HasSubstr(" -ncmoe "));
  EXPECT_LT(best.generation->rate, roomy.candidates[*roomy.best].generation->rate);
  // Layers on the host are slower, and among the others.
  const auto layers = std::find_if(tight.candidates.begin(), tight.candidates.end(), [](const Prediction& one) {
    return one.fits && one.candidate.host.device_layers >= 0 && one.candidate.host.expert_layers == 0;
  });
  ASSERT_NE(layers, tight.candidates.end());
  EXPECT_LT(layers->generation->rate, best.generation->rate);
}

TEST(HostPart, IsNotForThoseWhoSayThemselves) {
  const Ground ground(16);
  PlacementOptions options = ground.scenario().placement;
  EXPECT_EQ(host_beside(ground.devices, options), ground.host);
  options.device_layers = 3;
  EXPECT_EQ(host_beside(ground.devices, options), nullptr);
  options = {};
  Device* const cpus[] = {ground.host};
  EXPECT_EQ(host_beside(cpus, options), nullptr) << "has the same memory";
}

TEST(HostPart, HasTheFlagsThatPeopleWrite) {
  EXPECT_EQ(HostPart().flags(), "");
  EXPECT_EQ((HostPart{4, 0}).flags(), "-ngl 4");
  EXPECT_EQ((HostPart{-1, 9}).flags(), "-ncmoe 9");
  EXPECT_EQ((HostPart{4, 9}).flags(), "-ngl 4 -ncmoe 9");
}

// A weight that each of two GPUs gets a half of comes over two buses.
TEST(HostPart, WeightsAreBroughtToAllDevicesAtATime) {
  Ground ground(256);
  const auto set_memory_of_host = [&](double bandwidth) { ground.machine.devices.back().bandwidth = bandwidth; };
  set_memory_of_host(1e12);
  Candidate both = ground.as_one(), one{{{ground.devices[0]}}, SplitMode::kTensor, {}};
  both.host.expert_layers = one.host.expert_layers = 6;
  Scenario scenario = ground.scenario();
  scenario.session.batch = 512;
  scenario.session.context = 1024;
  scenario.workload = {512, 0, 0};
  const Prediction two = scenario.predict(both), alone = scenario.predict(one);
  EXPECT_GT(two.prompt->copies, 0);
  EXPECT_LT(two.prompt->copies, 0.75 * alone.prompt->copies);
  // As much as the host's memory gives.
  set_memory_of_host(1e8);
  EXPECT_GT(scenario.predict(both).prompt->copies, 5 * two.prompt->copies);
}

}  // namespace
}  // namespace shoal::tuning
