// Tests the choice of the host part for devices with too little memory. The host part is as small as possible, and the
// fastest choice comes first.
#include "tuning/choose/dimensions.h"

#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include "base/error.h"
#include "machine/machine.h"
#include "tests/models/hollow_model.h"
#include "tests/support/temporary.h"
#include "tests/tuning/asking.h"
#include "tuning/choose/compare.h"
#include "tuning/sim_device.h"

namespace shoal::tuning {
namespace {

using namespace models;

constexpr size_t kMiB = size_t{1} << 20;

/// A host and two GPUs with `mib` MiB of memory each.
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

  Asked asked() const {
    Asked asked = asked_of(machine, {.context = 256, .batch = 64}, {.use_mapping = false}, {64, 16, 0});
    asked.fixed = as_one();
    asked.placement.host = host;
    return asked;
  }
  std::vector<Verdict> parts(const Choice& way, const Margin& margin = {}) const {
    Chooser chooser(*model, asked());
    return host_parts(chooser, way, margin);
  }
  Comparison compared() const {
    Chooser chooser(*model, asked());
    return compare(chooser);
  }
  Choice as_one() const { return {{devices}, SplitMode::kTensor, {}}; }
  Choice by_layer() const { return {{{devices[0]}, {devices[1]}}, SplitMode::kLayer, {}}; }

  std::unique_ptr<Model> model;
  machine::MachineModel machine;
  std::vector<Device*> devices;
  Device* host = nullptr;
};

/// The host parts that are smaller than `part` by one layer.
std::vector<HostPart> with_less(const HostPart& part, int64_t layers) {
  if (part.device_layers < 0) return {{-1, part.expert_layers - 1}};
  if (part.device_layers > layers) return {{-1, part.expert_layers}};
  return {{part.device_layers + 1, part.expert_layers}};
}

TEST(HostPart, IsAsSmallAsPossible) {
  size_t found = 0;
  for (const bool experts : {true, false}) {
    for (const size_t mib : {5, 6, 8, 10, 12, 14}) {
      const Ground ground(mib, experts);
      Chooser chooser(*ground.model, ground.asked());
      for (const Choice& way : {ground.as_one(), ground.by_layer()}) {
        for (const Verdict& one : ground.parts(way)) {
          const Choice& candidate = one.choice;
          ++found;
          SCOPED_TRACE(fmt::format("{} MiB, {}", mib, candidate.name()));
          EXPECT_EQ(candidate.mode, way.mode);
          EXPECT_TRUE(chooser.judge(candidate).fits);
          for (const HostPart& part : with_less(candidate.host, 6)) {
            Choice less = candidate;
            less.host = part;
            // Tries all shares of layers, because the shares of `candidate` suit only the host part of `candidate`.
            for (int first = 0; first <= 6; ++first) {
              if (way.mode == SplitMode::kLayer)
                less.shares = {static_cast<double>(first), static_cast<double>(6 - first)};
              EXPECT_FALSE(chooser.judge(less).fits) << less.name();
            }
          }
        }
      }
    }
  }
  EXPECT_GT(found, 12u) << "this test needs other memory sizes";
}

TEST(HostPart, LeavesTheMarginFree) {
  const Ground ground(12);
  const Choice way = ground.as_one();
  const auto layers_with = [&](size_t margin) {
    const auto found = ground.parts(way, {.bytes = margin});
    return found.empty() ? -1 : found.front().choice.host.expert_layers;
  };
  EXPECT_GT(layers_with(4 * kMiB), layers_with(0));
  EXPECT_EQ(layers_with(64 * kMiB), -1) << "more than the memory";
}

TEST(HostPart, NeedsHostWithEnoughMemory) {
  const Ground ground(8, true, 8);
  const Choice way = ground.as_one();
  EXPECT_TRUE(ground.parts(way).empty());
}

TEST(HostPart, IsRecommendedIfNothingElseFits) {
  const Ground small(10), large(256);
  const Comparison roomy = large.compared();
  ASSERT_TRUE(roomy.best);
  for (const Verdict& one : roomy.verdicts) EXPECT_TRUE(one.choice.host.empty()) << one.choice.name();
  const Comparison tight = small.compared();
  ASSERT_TRUE(tight.best) << "the host has enough memory";
  const Verdict& best = tight.verdicts[*tight.best];
  EXPECT_GT(best.choice.host.expert_layers, 0) << "a token uses few experts";
  EXPECT_THAT(best.choice.name(), ::testing::HasSubstr(" -ncmoe "));
  EXPECT_LT(best.generation->rate, roomy.verdicts[*roomy.best].generation->rate);
  // The table also contains a choice with layers on the host. This choice is slower than the best choice.
  const auto layers = std::find_if(tight.verdicts.begin(), tight.verdicts.end(), [](const Verdict& one) {
    return one.fits && one.choice.host.device_layers >= 0 && one.choice.host.expert_layers == 0;
  });
  ASSERT_NE(layers, tight.verdicts.end());
  EXPECT_LT(layers->generation->rate, best.generation->rate);
}

TEST(HostPart, IsNotSearchedIfFlagsSetHostPart) {
  const Ground ground(16);
  PlacementOptions options = ground.asked().placement;
  EXPECT_EQ(find_host(ground.devices, options), ground.host);
  options.device_layers = 3;
  EXPECT_EQ(find_host(ground.devices, options), nullptr);
  options = {};
  Device* const cpus[] = {ground.host};
  EXPECT_EQ(find_host(cpus, options), nullptr) << "a CPU already has host memory";
}

TEST(HostPart, IsPrintedAsCommandLineFlags) {
  EXPECT_EQ(HostPart().flags(), "");
  EXPECT_EQ((HostPart{4, 0}).flags(), "-ngl 4");
  EXPECT_EQ((HostPart{-1, 9}).flags(), "-ncmoe 9");
  EXPECT_EQ((HostPart{4, 9}).flags(), "-ngl 4 -ncmoe 9");
}

// Each of two GPUs receives half of every streamed weight over its own bus.
TEST(HostPart, StreamsWeightsToAllDevicesConcurrently) {
  Ground ground(256);
  const auto set_memory_of_host = [&](double bandwidth) { ground.machine.devices.back().bandwidth = bandwidth; };
  set_memory_of_host(1e12);
  Choice both = ground.as_one(), one{{{ground.devices[0]}}, SplitMode::kTensor, {}};
  both.host.expert_layers = one.host.expert_layers = 6;
  Asked question = ground.asked();
  question.session.batch = 512;
  question.session.context = 1024;
  question.work = {512, 0, 0};
  const auto verdict = [&](const Choice& choice) { return judged(*ground.model, question, choice); };
  const Verdict two = verdict(both), alone = verdict(one);
  EXPECT_GT(two.prompt->copies, 0);
  EXPECT_LT(two.prompt->copies, 0.75 * alone.prompt->copies);
  // Slow host memory limits the speed of the copies.
  set_memory_of_host(1e8);
  EXPECT_GT(verdict(both).prompt->copies, 5 * two.prompt->copies);
}

}  // namespace
}  // namespace shoal::tuning
