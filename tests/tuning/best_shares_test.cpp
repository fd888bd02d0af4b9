// The search for shares against looking at all of them, on machines described by hand and simulated memory.
#include "tuning/best_shares.h"

#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include "base/error.h"
#include "tests/models/described_machine.h"
#include "tests/models/hollow_model.h"
#include "tests/models/tiny_model.h"
#include "tests/support/temporary.h"
#include "tuning/sim_device.h"

namespace shoal::tuning {
namespace {

using namespace machine;
using namespace meta;
using namespace models;

using ::testing::ElementsAre;

class BestSharesTest : public ::testing::Test {
 protected:
  void SetUp() override {
    HollowModel hollow(4, 1024, 4096, 16, 8, 4096);
    hollow.dtype = q4_0();
    const test::TemporaryFile file("hollow.gguf");
    hollow.write(file.path);
    model_ = open_model(file.path);
  }

  /// Small batches, so that little is planned.
  Scenario scenario(const machine::MachineModel& machine, const Workload& workload = {0, 16, 0},
                    int64_t batch = 1) const {
    return {*model_, machine, {{}, 1}, {.context = 1024, .batch = batch}, {.use_mapping = false}, workload};
  }

  static double share(const BestShares& found, size_t device) {
    const auto& shares = found.best.candidate.shares;
    if (shares.empty()) return 1.0 / static_cast<double>(found.best.candidate.device_count());
    double sum = 0;
    for (const double one : shares) sum += one;
    return shares[device] / sum;
  }

  std::unique_ptr<Model> model_;
};

/// The best of all k / 64.
std::pair<double, double> exhaustive(const Scenario& scenario, const Candidate& devices, Objective objective) {
  double least = std::numeric_limits<double>::infinity(), best = 0;
  for (int k = 0; k <= 64; ++k) {
    Candidate one = devices;
    one.shares = {static_cast<double>(k), static_cast<double>(64 - k)};
    const double seconds = seconds_of(scenario.predict(one), objective);
    if (seconds < least) least = seconds, best = k / 64.0;
  }
  return {least, best};
}

TEST_F(BestSharesTest, FindsTheBestOfAllSharesOfUnevenDevices) {
  for (const auto& [first, second] : {std::pair(3e-12, 1e-12), {1e-12, 3e-12}, {1e-12, 1.3e-12}, {1e-12, 9e-12}}) {
    const machine::MachineModel machine = described_machine({first, second});
    const Candidate both{cpu_groups({2}), SplitMode::kTensor, {}};
    for (const Objective objective : {Objective::kGeneration, Objective::kPrompt, Objective::kMix}) {
      const bool generates = objective == Objective::kGeneration;
      const Scenario asked = scenario(machine, {generates ? 0 : 8, 16, 0}, generates ? 1 : 2);
      const auto [least, best] = exhaustive(asked, both, objective);
      const BestShares found = best_shares(asked, both, {.objective = objective});
      EXPECT_LE(seconds_of(found.best, objective), 1.01 * least) << first << " " << second;
      EXPECT_NEAR(share(found, 0), best, 1.0 / 8 + 1e-9) << first << " " << second;  // one unit of the heads
      EXPECT_LE(found.predictions, 96);
    }
  }
}

TEST_F(BestSharesTest, ThreeToOneIsThreeToOne) {
  const machine::MachineModel machine = described_machine({1e-12, 3e-12});
  const BestShares found = best_shares(scenario(machine), {cpu_groups({2}), SplitMode::kTensor, {}});
  EXPECT_THAT(found.best.candidate.shares, ElementsAre(3, 1));
  EXPECT_EQ(found.best.candidate.ratio(), "3,1");
  EXPECT_LT(found.best.generation->seconds, found.even.generation->seconds);
}

TEST_F(BestSharesTest, EqualDevicesShareEvenly) {
  const machine::MachineModel machine = described_machine({1e-12, 1e-12, 1e-12, 1e-12});
  const BestShares found = best_shares(scenario(machine), {cpu_groups({4}), SplitMode::kTensor, {}});
  EXPECT_EQ(found.best.split_key, found.even.split_key);
}

TEST_F(BestSharesTest, DevicesThatAreAlikeAreNotTriedInEveryOrder) {
  machine::MachineModel machine = described_machine(std::vector<double>(8, 1e-12));
  const Candidate all{cpu_groups({8}), SplitMode::kTensor, {}};
  const BestShares alike = best_shares(scenario(machine), all);
  for (machine::DeviceModel& device : machine.devices) device.identity = device.name;
  const BestShares unlike = best_shares(scenario(machine), all);
  EXPECT_EQ(alike.best.split_key, unlike.best.split_key);
  EXPECT_LE(alike.predictions, 12);
  EXPECT_GE(unlike.predictions, 5 * alike.predictions);
}

TEST_F(BestSharesTest, TensorsMayHaveBeenPutOnOneOfTheDevices) {
  // None of the devices does the work alone then.
  const machine::MachineModel machine = described_machine({1e-12, 3e-12});
  Scenario asked = scenario(machine);
  asked.placement.overrides = {{"blk\\.0\\.", "CPU0"}, {"blk\\.1\\.", "CPU1"}};
  const Candidate layers{cpu_groups({1, 1}), SplitMode::kLayer, {}};
  const BestShares found = best_shares(asked, layers);
  EXPECT_LE(found.best.generation->seconds, found.even.generation->seconds);
  asked.placement.overrides = {{"blk\\.1\\.", "CPU7"}};
  EXPECT_THROW(best_shares(asked, layers), InvalidArgument);
}

TEST_F(BestSharesTest, ThreeDevicesGetSharesByTheirSpeed) {
  const machine::MachineModel machine = described_machine({1e-12, 2e-12, 4e-12});
  const BestShares found = best_shares(scenario(machine), {cpu_groups({3}), SplitMode::kTensor, {}});
  EXPECT_NEAR(share(found, 0), 4.0 / 7, 1.0 / 8);
  EXPECT_NEAR(share(found, 1), 2.0 / 7, 1.0 / 8);
  EXPECT_NEAR(share(found, 2), 1.0 / 7, 1.0 / 8);
}

TEST_F(BestSharesTest, ADeviceThatIsWorthNothingGetsNothing) {
  const machine::MachineModel machine = described_machine({1e-12, 1e-9});
  const BestShares found = best_shares(scenario(machine), {cpu_groups({2}), SplitMode::kTensor, {}});
  EXPECT_DOUBLE_EQ(share(found, 1), 0);
}

TEST_F(BestSharesTest, AllTakePartWhereTheyHaveTo) {
  const machine::MachineModel machine = described_machine({1e-12, 1e-9, 1e-12});
  for (const SplitMode mode : {SplitMode::kTensor, SplitMode::kLayer}) {
    const Candidate devices{mode == SplitMode::kTensor ? cpu_groups({3}) : cpu_groups({1, 1, 1}), mode, {}};
    ShareSearch search;
    search.all_take_part = true;
    const BestShares found = best_shares(scenario(machine), devices, search);
    EXPECT_LT(share(found, 1), mode == SplitMode::kTensor ? 0.05 : 0.3);
    ASSERT_EQ(found.best.memory.size(), 3u);
    size_t least = found.best.memory[0].use.weights;
    for (const DeviceUse& use : found.best.memory) least = std::min(least, use.use.weights);
    // More than what every device has a copy of.
    Candidate none = devices;
    none.shares = {1, 0, 1};
    const Prediction without = scenario(machine).predict(none);
    const size_t copies = without.memory.size() == 3 ? without.memory[1].use.weights : 0;
    EXPECT_GT(least, copies);
    EXPECT_LT(found.best.generation->seconds, found.even.generation->seconds / (mode == SplitMode::kTensor ? 5 : 0.9));
  }
}

TEST_F(BestSharesTest, ManyPredictionsAreNotNeeded) {
  const machine::MachineModel machine = described_machine({1e-12, 3e-12});
  const Candidate both{cpu_groups({2}), SplitMode::kTensor, {}};
  int told = 0;
  ShareSearch search;
  search.predictions = 5;
  search.progress = [&told](int done, int most) {
    EXPECT_LT(done, most + 2);
    ++told;
  };
  const BestShares found = best_shares(scenario(machine), both, search);
  EXPECT_EQ(found.predictions, told);
  EXPECT_LE(told, 8);
  EXPECT_LT(found.best.generation->seconds, found.even.generation->seconds);
  search.progress = [](int, int) { throw InvalidArgument("stop"); };
  EXPECT_THROW(best_shares(scenario(machine), both, search), InvalidArgument);
}

TEST_F(BestSharesTest, WhatDoesNotFitGoesToDevicesWithRoom) {
  // As fast as each other, but the first has room for a fourth of the model at most.
  machine::MachineModel machine = described_machine({1e-12, 1e-12});
  const auto devices = [](std::vector<Device*> group) {
    return Candidate{DeviceGroups(1, std::move(group)), SplitMode::kTensor, {}};
  };
  Device& roomy = sim::family().provide({"ROOM.0", "roomy", DeviceType::kCpu, size_t{1} << 36});
  machine.devices[0].name = "ROOM.0";
  const Prediction alone = scenario(machine).predict(devices({&roomy}));
  const size_t needed = alone.memory[0].use.total();
  machine.devices[0].name = "TIGHT.0";
  machine.devices[1].name = "ROOM.0";
  Device& tight = sim::family().provide({"TIGHT.0", "tight", DeviceType::kCpu, needed / 3});
  const BestShares found = best_shares(scenario(machine), devices({&tight, &roomy}));
  EXPECT_FALSE(found.even.fits);
  EXPECT_TRUE(found.best.fits);
  EXPECT_LT(share(found, 0), 0.4);
  EXPECT_GT(share(found, 0), 0.05);  // as much as there is room for, not nothing

  Device& smaller = sim::family().provide({"ROOM.0", "no room", DeviceType::kCpu, needed / 3});
  const BestShares none = best_shares(scenario(machine), devices({&tight, &smaller}));
  EXPECT_FALSE(none.best.fits);
}

TEST_F(BestSharesTest, LayersAreSharedToo) {
  // For a prompt the devices work at the same time: four layers, three times as fast.
  const machine::MachineModel machine = described_machine({1e-12, 3e-12});
  const Candidate layers{cpu_groups({1, 1}), SplitMode::kLayer, {}};
  const Scenario asked = scenario(machine, {64, 0, 0}, 8);
  const BestShares found = best_shares(asked, layers, {.objective = Objective::kPrompt});
  Candidate three_to_one = layers;
  three_to_one.shares = {3, 1};
  EXPECT_EQ(found.best.split_key, asked.predict(three_to_one).split_key);
}

}  // namespace
}  // namespace shoal::tuning
