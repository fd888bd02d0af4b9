// Tests which devices are recommended on described machines, and which reasons are given.
#include "tuning/choose/compare.h"

#include <fmt/format.h>
#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include <algorithm>

#include "base/error.h"
#include "tests/models/described_machine.h"
#include "tests/models/hollow_model.h"
#include "tests/models/tiny_model.h"
#include "tests/support/temporary.h"
#include "tests/tuning/asking.h"
#include "tuning/choose/dimensions.h"

namespace shoal::tuning {
namespace {

using namespace machine;
using namespace meta;
using namespace models;

using ::testing::AllOf;
using ::testing::ElementsAre;
using ::testing::HasSubstr;
using ::testing::StartsWith;

class Compare : public ::testing::Test {
 protected:
  void SetUp() override {
    HollowModel hollow(4, 1024, 4096, 16, 8, 4096);
    hollow.dtype = q4_0();
    const test::TemporaryFile file("hollow.gguf");
    hollow.write(file.path);
    model_ = open_model(file.path);
  }

  static Asked asked(const machine::MachineModel& machine, int devices, const Workload& work = {64, 16, 0},
                     Objective objective = Objective::kGeneration) {
    Asked asked = asked_of(machine, {.context = 1024, .batch = 8}, {}, work, objective);
    asked.fixed = {cpu_groups({devices})};
    return asked;
  }

  Comparison compared(const Asked& asked) const {
    Chooser chooser(*model_, asked);
    return compare(chooser);
  }
  Comparison compared(const machine::MachineModel& machine, int devices,
                      Objective objective = Objective::kGeneration) const {
    return compared(asked(machine, devices, {64, 16, 0}, objective));
  }

  std::unique_ptr<Model> model_;
};

TEST(Verdicts, ChoiceThatFitsWinsAndUnknownTimeIsSlowest) {
  for (const Objective objective : {Objective::kGeneration, Objective::kPrompt, Objective::kMix}) {
    Verdict fast, slow, untimed, lacking;
    fast.fits = slow.fits = untimed.fits = true;
    fast.generation.emplace().seconds = fast.prompt.emplace().seconds = 1;
    slow.generation.emplace().seconds = slow.prompt.emplace().seconds = 1e9;
    lacking.generation.emplace().seconds = lacking.prompt.emplace().seconds = 1e-9;
    lacking.memory = {{"CPU0", {.weights = 2}, {1, 1}}};
    const std::vector<const Verdict*> order{&fast, &slow, &untimed, &lacking};
    for (size_t i = 0; i < order.size(); ++i) {
      for (size_t j = 0; j < order.size(); ++j) {
        EXPECT_EQ(is_better(*order[i], *order[j], objective), i < j) << i << " " << j;
        EXPECT_EQ(is_better(*order[i], *order[j], objective, 1e-4), i < j) << i << " " << j;
      }
    }
    EXPECT_FALSE(untimed.has_time());
    EXPECT_GT(seconds_of(untimed, objective), 1e30);
  }
}

std::vector<std::string> names(const Comparison& comparison) {
  std::vector<std::string> out;
  for (const Verdict& one : comparison.verdicts) out.push_back(one.choice.name());
  return out;
}

TEST_F(Compare, FastLinkFavoursAllDevices) {
  const Comparison found = compared(described_machine({1e-12, 3e-12}), 2);
  ASSERT_EQ(found.best, 0u);
  EXPECT_EQ(found.verdicts[0].choice.name(), "CPU0,CPU1 tensor 3,1");
  EXPECT_THAT(found.reason,
              AllOf(StartsWith("CPU0,CPU1 tensor 3,1 is predicted 1."), HasSubstr("x faster than CPU0 alone")));
  EXPECT_THAT(names(found), ::testing::IsSupersetOf({"CPU0", "CPU1", "CPU0,CPU1 tensor even", "CPU0,CPU1 layer even"}));
  for (size_t i = 1; i < found.verdicts.size(); ++i) {
    EXPECT_GE(found.verdicts[i].generation->seconds, found.verdicts[i - 1].generation->seconds);
  }
}

TEST_F(Compare, SlowLinkFavoursOneDevice) {
  machine::MachineModel machine = described_machine({1e-12, 1e-12}, 1e-3);
  machine.copy_latency = 1e-4;
  const Comparison found = compared(machine, 2);
  ASSERT_EQ(found.best, 0u);
  EXPECT_EQ(found.verdicts[0].choice.name(), "CPU0");
  EXPECT_THAT(found.reason, AllOf(StartsWith("CPU0 alone is predicted "), HasSubstr("x faster than CPU0,CPU1 tensor "),
                                  HasSubstr("8 all_reduce"), HasSubstr(" per token take ")));
  // A layer split needs copies but no collectives. So the layer split is faster than the tensor split, and the reason
  // names the layer split first.
  EXPECT_THAT(found.reason, ::testing::ContainsRegex("x faster than CPU0,CPU1 layer .*copies between devices take .*; "
                                                     ".*x faster than CPU0,CPU1 tensor "));
}

TEST_F(Compare, BestChoiceIsComparedWithBestSplitOverAllDevices) {
  // Two devices are so slow that their best share is zero. The even split is the slowest split over all devices.
  machine::MachineModel machine = described_machine({1e-12, 1e-12, 1e-8, 1e-8});
  machine.copy_latency = 1e-3;
  const Asked question = asked(machine, 4);
  const Choice all{cpu_groups({4}), SplitMode::kTensor, {}};
  Chooser chooser(*model_, question);
  const FoundShares free = fastest_shares(chooser, all);
  ASSERT_THAT(free.best.choice.shares, ::testing::Contains(0.0)) << "this test needs a device whose best share is zero";
  const Comparison found = compared(machine, 4);
  ASSERT_EQ(found.best, 0u);
  const Verdict& best = found.verdicts[0];
  EXPECT_EQ(best.choice.name(), "CPU0,CPU1 tensor even");
  const auto rival = std::find_if(found.verdicts.begin(), found.verdicts.end(),
                                  [](const Verdict& one) { return one.choice.device_count() == 4; });
  ASSERT_NE(rival, found.verdicts.end());
  const std::vector<double>& shares = rival->choice.shares;
  ASSERT_EQ(shares.size(), 4u);
  EXPECT_GT(*std::min_element(shares.begin(), shares.end()), 0);
  const double seconds = rival->generation->seconds;
  EXPECT_LT(seconds, free.even.generation->seconds / 4);
  // The best split over all devices takes at most 2 % longer than the splits that give each slow device 1, 2, 4 or 8 of
  // 128 units.
  for (const double share : {1.0, 2.0, 4.0, 8.0}) {
    Choice other = all;
    other.shares = {64 - share, 64 - share, share, share};
    EXPECT_LE(seconds, chooser.judge(other).generation->seconds * 1.02) << share;
  }
  const double factor = seconds / best.generation->seconds;
  EXPECT_THAT(found.reason, HasSubstr(fmt::format("{:.2f}x faster than {}", factor, rival->choice.name())));
}

TEST_F(Compare, ObjectivesRequireTokensOfTheirPhase) {
  const machine::MachineModel machine = described_machine({1e-12});
  const auto refused = [&](const Workload& workload, Objective objective) {
    try {
      compared(asked(machine, 1, workload, objective));
    } catch (const InvalidArgument& error) {
      return std::string(error.what());
    }
    return std::string();
  };
  EXPECT_EQ(refused({0, 16, 0}, Objective::kPrompt), "the objective prompt needs a prompt");
  EXPECT_EQ(refused({16, 0, 0}, Objective::kGeneration), "the objective generation needs tokens to generate");
  for (const Workload& half : {Workload{16, 0, 0}, Workload{0, 16, 0}}) {
    EXPECT_EQ(refused(half, Objective::kMix), "the objective mix needs a prompt and tokens to generate");
  }
  EXPECT_EQ(refused({0, 16, 0}, Objective::kGeneration), "");
  EXPECT_EQ(refused({16, 0, 0}, Objective::kPrompt), "");
  EXPECT_EQ(refused({16, 16, 0}, Objective::kMix), "");
}

TEST_F(Compare, BestChoiceDependsOnObjective) {
  machine::MachineModel machine = described_machine({1e-12, 1e-12}, 2e-5);
  machine.copy_latency = 1e-4;
  EXPECT_EQ(compared(machine, 2).verdicts[0].choice.device_count(), 1u);
  EXPECT_EQ(compared(machine, 2, Objective::kPrompt).verdicts[0].choice.device_count(), 2u);
}

TEST_F(Compare, SubsetOfDevicesMayBeBest) {
  // A collective with the third device takes a millisecond.
  machine::MachineModel machine = described_machine({1e-12, 1e-12, 1e-12}, 1e-3);
  for (const Collective kind : {Collective::kAllReduce, Collective::kAllGather}) {
    machine.collectives.push_back({{"CPU0", "CPU1"}, kind, {{1, 1e-6}, {1e6, 1e-6}}});
  }
  for (size_t i = 0; i < 3; ++i) machine.devices[i].identity = "device " + std::to_string(i);
  const Comparison found = compared(machine, 3);
  EXPECT_EQ(found.verdicts[0].choice.name(), "CPU0,CPU1 tensor even");
  EXPECT_THAT(found.reason,
              AllOf(StartsWith("CPU0,CPU1 tensor even is predicted "), HasSubstr("CPU0,CPU1,CPU2 tensor")));
}

TEST_F(Compare, ThrowsIfNoChoiceIsPossible) {
  const machine::MachineModel machine = described_machine({1e-12});
  EXPECT_THROW(compared(machine, 2), InvalidArgument);  // the machine lacks the second device
  EXPECT_EQ(compared(machine, 1).reason, "CPU0 is the only device");
}

TEST(UsefulSets, EquivalentSetsAppearOnce) {
  machine::MachineModel machine = described_machine({1e-12, 1e-12, 1e-12, 1e-12, 2e-12});
  const std::vector<Device*> devices = cpu_devices(5);
  const auto sizes = [&](size_t count) {
    std::vector<size_t> out;
    for (const auto& set : useful_sets(std::span(devices).first(count), machine)) out.push_back(set.size());
    return out;
  };
  EXPECT_THAT(sizes(4), ElementsAre(1, 2, 3, 4));
  EXPECT_THAT(sizes(5), ElementsAre(1, 1, 2, 2, 3, 3, 4, 4, 5));
  // Each of two sockets has two devices. A pair of devices may be on one socket or on both.
  machine.domains = {{"socket 0", 0, 0}, {"socket 1", 0, 0}};
  for (size_t i = 0; i < 4; ++i) machine.devices[i].domain = static_cast<int>(i / 2);
  machine.devices.pop_back();
  EXPECT_THAT(sizes(4), ElementsAre(1, 2, 2, 3, 4));
}

TEST(Exchangeable, EqualDevicesInEqualDomainsAreExchangeable) {
  machine::MachineModel machine = described_machine({1e-12, 1e-12, 1e-12, 1e-12, 2e-12});
  const std::vector<Device*> devices = cpu_devices(5);
  const auto numbers = [&](size_t count) { return exchangeable(std::span(devices).first(count), machine); };
  EXPECT_THAT(numbers(5), ElementsAre(0, 0, 0, 0, 1));
  // Each socket is a domain with up to two devices. Two devices in one socket share the domain. A single device in a
  // socket has the whole domain.
  machine.domains = {{"socket 0", 0, 0}, {"socket 1", 0, 0}, {"socket 2", 0, 0}};
  for (size_t i = 0; i < 5; ++i) machine.devices[i].domain = static_cast<int>(i / 2);
  EXPECT_THAT(numbers(4), ElementsAre(0, 0, 1, 1));
  EXPECT_THAT(numbers(3), ElementsAre(0, 0, 1));
  EXPECT_THAT(exchangeable(std::vector{devices[0], devices[2]}, machine), ElementsAre(0, 0));
  machine.domains[1].bandwidth = 1e9;
  EXPECT_THAT(exchangeable(std::vector{devices[0], devices[2]}, machine), ElementsAre(0, 1));
}

TEST(UsefulSets, NoiseInMeasuredBandwidthAddsNoSets) {
  machine::MachineModel machine = described_machine({1e-12, 1e-12, 1e-12, 1e-12});
  for (machine::DeviceModel& device : machine.devices) device.identity = "alike";
  const double bandwidths[] = {3.94e12, 3.96e12, 4.04e12, 4.06e12};
  for (size_t i = 0; i < 4; ++i) machine.domains[i].bandwidth = bandwidths[i];
  const std::vector<Device*> devices = cpu_devices(4);
  EXPECT_EQ(useful_sets(devices, machine).size(), 4u);
  machine.domains[3].bandwidth = 8e12;
  EXPECT_EQ(useful_sets(devices, machine).size(), 7u);
}

TEST(UsefulSets, DevicesAreDistinguishedByMeasurements) {
  // As in a JSON machine with "count", the devices have different names, and `identity` is empty.
  machine::MachineModel machine = described_machine({1e-12, 1.04e-12, 1e-12});
  for (machine::DeviceModel& device : machine.devices) device.identity.clear();
  const std::vector<Device*> devices = cpu_devices(3);
  EXPECT_EQ(useful_sets(devices, machine).size(), 3u) << "measurements that differ by up to 10 % count as equal";
  machine.devices[2].products["q4_0"].streamed.front().seconds = 2e-12;
  EXPECT_EQ(useful_sets(devices, machine).size(), 5u);
  // `identity` is the same text for all devices, but the measurements differ.
  for (machine::DeviceModel& device : machine.devices) device.identity = "alike";
  EXPECT_EQ(useful_sets(devices, machine).size(), 5u);
  machine.devices[2] = machine.devices[1];
  machine.devices[2].name = "CPU2";
  machine.devices[2].domain = 2;
  EXPECT_EQ(useful_sets(devices, machine).size(), 3u);
  machine.devices[2].attention_bandwidth /= 2;
  EXPECT_EQ(useful_sets(devices, machine).size(), 5u);
}

TEST_F(Compare, PicksFasterOfTwoDevicesWithEqualIdentities) {
  machine::MachineModel machine = described_machine({3e-12, 1e-12}, 1e-2);
  machine.copy_latency = 1e-2;
  for (machine::DeviceModel& device : machine.devices) device.identity = "alike";
  EXPECT_EQ(compared(machine, 2).verdicts[0].choice.name(), "CPU1");
}

TEST_F(Compare, LayerSplitSkipsDevicesWithoutLayers) {
  // A layer split would give the second device less than one of the four layers.
  const Comparison found = compared(described_machine({1e-12, 100e-12}), 2);
  for (const Verdict& one : found.verdicts) {
    const auto& shares = one.choice.shares;
    EXPECT_EQ(std::count(shares.begin(), shares.end(), 0.0), 0) << one.choice.name();
  }
}

TEST(UsefulSets, NumberOfSetsIsLimitedForManyDevices) {
  std::vector<double> seconds;
  for (int i = 0; i < 8; ++i) seconds.push_back(1e-12 * (i + 1));
  machine::MachineModel machine = described_machine(seconds);
  for (size_t i = 0; i < 8; ++i) machine.devices[i].bandwidth = 1e9 * static_cast<double>(i + 1);
  const std::vector<Device*> devices = cpu_devices(8);
  const auto sets = useful_sets(devices, machine);  // the 8 devices have 255 different subsets
  ASSERT_EQ(sets.size(), 8u);
  EXPECT_THAT(sets[1], ElementsAre(devices[7], devices[6]));
}

}  // namespace
}  // namespace shoal::tuning
