// Compares the share search with an exhaustive search, on described machines with simulated memory.
#include "tuning/choose/dimensions.h"

#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include "base/error.h"
#include "tests/models/described_machine.h"
#include "tests/models/hollow_model.h"
#include "tests/models/tiny_model.h"
#include "tests/support/temporary.h"
#include "tests/tuning/asking.h"
#include "tuning/sim_device.h"

namespace shoal::tuning {
namespace {

using namespace machine;
using namespace meta;
using namespace models;

using ::testing::ElementsAre;

class Shares : public ::testing::Test {
 protected:
  void SetUp() override {
    HollowModel hollow(4, 1024, 4096, 16, 8, 4096);
    hollow.dtype = q4_0();
    const test::TemporaryFile file("hollow.gguf");
    hollow.write(file.path);
    model_ = open_model(file.path);
  }

  /// Small batches keep the plans small.
  static Asked asked(const machine::MachineModel& machine, const Workload& work = {0, 16, 0}, int64_t batch = 1) {
    return asked_of(machine, {.context = 1024, .batch = batch}, {.use_mapping = false}, work);
  }

  FoundShares fastest(const Asked& asked, const Choice& choice, const ShareLimits& limits = {},
                      Watch watch = {}) const {
    Chooser chooser(*model_, asked, std::move(watch));
    return fastest_shares(chooser, choice, limits);
  }

  static double share(const FoundShares& found, size_t device) {
    const auto& shares = found.best.choice.shares;
    if (shares.empty()) return 1.0 / static_cast<double>(found.best.choice.device_count());
    double sum = 0;
    for (const double one : shares) sum += one;
    return shares[device] / sum;
  }

  std::unique_ptr<Model> model_;
};

/// Tries every split in which the share of the first device is a multiple of 1/64. Returns the seconds of the fastest
/// split and the share of the first device in this split.
std::pair<double, double> exhaustive(const Model& model, const Asked& asked, const Choice& devices) {
  double least = std::numeric_limits<double>::infinity(), best = 0;
  for (int k = 0; k <= 64; ++k) {
    Choice one = devices;
    one.shares = {static_cast<double>(k), static_cast<double>(64 - k)};
    const double seconds = seconds_of(judged(model, asked, one), asked.objective);
    if (seconds < least) least = seconds, best = k / 64.0;
  }
  return {least, best};
}

TEST_F(Shares, AreCloseToSharesOfExhaustiveSearch) {
  for (const auto& [first, second] : {std::pair(3e-12, 1e-12), {1e-12, 3e-12}, {1e-12, 1.3e-12}, {1e-12, 9e-12}}) {
    const machine::MachineModel machine = described_machine({first, second});
    const Choice both{cpu_groups({2}), SplitMode::kTensor, {}};
    for (const Objective objective : {Objective::kGeneration, Objective::kPrompt, Objective::kMix}) {
      const bool generates = objective == Objective::kGeneration;
      Asked question = asked(machine, {generates ? 0 : 8, 16, 0}, generates ? 1 : 2);
      question.objective = objective;
      const auto [least, best] = exhaustive(*model_, question, both);
      const FoundShares found = fastest(question, both);
      EXPECT_LE(seconds_of(found.best, objective), 1.01 * least) << first << " " << second;
      EXPECT_NEAR(share(found, 0), best, 1.0 / 8 + 1e-9) << first << " " << second;  // tolerance: one attention head
      EXPECT_LE(found.predictions, 96);
    }
  }
}

TEST_F(Shares, AreThreeToOneForTripleSpeed) {
  const machine::MachineModel machine = described_machine({1e-12, 3e-12});
  const FoundShares found = fastest(asked(machine), {cpu_groups({2}), SplitMode::kTensor, {}});
  EXPECT_THAT(found.best.choice.shares, ElementsAre(3, 1));
  EXPECT_EQ(found.best.choice.ratio(), "3,1");
  EXPECT_LT(found.best.generation->seconds, found.even.generation->seconds);
}

TEST_F(Shares, AreEvenForEqualDevices) {
  const machine::MachineModel machine = described_machine({1e-12, 1e-12, 1e-12, 1e-12});
  const FoundShares found = fastest(asked(machine), {cpu_groups({4}), SplitMode::kTensor, {}});
  EXPECT_EQ(found.best.split_key, found.even.split_key);
}

TEST_F(Shares, SearchTriesEquivalentSharesOnce) {
  machine::MachineModel machine = described_machine(std::vector<double>(8, 1e-12));
  const Choice all{cpu_groups({8}), SplitMode::kTensor, {}};
  const FoundShares alike = fastest(asked(machine), all);
  for (machine::DeviceModel& device : machine.devices) device.identity = device.name;
  const FoundShares unlike = fastest(asked(machine), all);
  EXPECT_EQ(alike.best.split_key, unlike.best.split_key);
  EXPECT_LE(alike.predictions, 12);
  EXPECT_GE(unlike.predictions, 5 * alike.predictions);
}

TEST_F(Shares, SearchSupportsTensorOverrides) {
  // Because of these overrides, each device must run a part of the model.
  const machine::MachineModel machine = described_machine({1e-12, 3e-12});
  Asked question = asked(machine);
  question.placement.overrides = {{"blk\\.0\\.", "CPU0"}, {"blk\\.1\\.", "CPU1"}};
  const Choice layers{cpu_groups({1, 1}), SplitMode::kLayer, {}};
  const FoundShares found = fastest(question, layers);
  EXPECT_LE(found.best.generation->seconds, found.even.generation->seconds);
  question.placement.overrides = {{"blk\\.1\\.", "CPU7"}};
  EXPECT_THROW(fastest(question, layers), InvalidArgument);
}

TEST_F(Shares, AreProportionalToSpeedsOfThreeDevices) {
  const machine::MachineModel machine = described_machine({1e-12, 2e-12, 4e-12});
  const FoundShares found = fastest(asked(machine), {cpu_groups({3}), SplitMode::kTensor, {}});
  EXPECT_NEAR(share(found, 0), 4.0 / 7, 1.0 / 8);
  EXPECT_NEAR(share(found, 1), 2.0 / 7, 1.0 / 8);
  EXPECT_NEAR(share(found, 2), 1.0 / 7, 1.0 / 8);
}

TEST_F(Shares, AreZeroForVerySlowDevice) {
  const machine::MachineModel machine = described_machine({1e-12, 1e-9});
  const FoundShares found = fastest(asked(machine), {cpu_groups({2}), SplitMode::kTensor, {}});
  EXPECT_DOUBLE_EQ(share(found, 1), 0);
}

TEST_F(Shares, AreAboveZeroIfEveryDeviceIsRequired) {
  const machine::MachineModel machine = described_machine({1e-12, 1e-9, 1e-12});
  for (const SplitMode mode : {SplitMode::kTensor, SplitMode::kLayer}) {
    const Choice devices{mode == SplitMode::kTensor ? cpu_groups({3}) : cpu_groups({1, 1, 1}), mode, {}};
    const FoundShares found = fastest(asked(machine), devices, {.all_take_part = true});
    EXPECT_LT(share(found, 1), mode == SplitMode::kTensor ? 0.05 : 0.3);
    ASSERT_EQ(found.best.memory.size(), 3u);
    size_t least = found.best.memory[0].use.weights;
    for (const DeviceUse& use : found.best.memory) least = std::min(least, use.use.weights);
    // Each device must store more than the mirrored tensors.
    Choice none = devices;
    none.shares = {1, 0, 1};
    const Verdict without = judged(*model_, asked(machine), none);
    const size_t copies = without.memory.size() == 3 ? without.memory[1].use.weights : 0;
    EXPECT_GT(least, copies);
    EXPECT_LT(found.best.generation->seconds, found.even.generation->seconds / (mode == SplitMode::kTensor ? 5 : 0.9));
  }
}

TEST_F(Shares, SearchRespectsPredictionLimit) {
  const machine::MachineModel machine = described_machine({1e-12, 3e-12});
  const Choice both{cpu_groups({2}), SplitMode::kTensor, {}};
  int told = 0;
  Watch watch;
  watch.progress = [&told](int done, int most) {
    EXPECT_LE(done, most);
    ++told;
  };
  const FoundShares found = fastest(asked(machine), both, {.predictions = 5}, watch);
  EXPECT_EQ(found.predictions, told);
  EXPECT_LE(told, 8);
  EXPECT_LT(found.best.generation->seconds, found.even.generation->seconds);
  watch.progress = [](int, int) { throw InvalidArgument("stop"); };
  EXPECT_THROW(fastest(asked(machine), both, {}, watch), InvalidArgument);
}

TEST_F(Shares, WeightsMoveToDevicesWithFreeMemory) {
  // Both devices are equally fast, but the first device has memory for at most a third of the model.
  machine::MachineModel machine = described_machine({1e-12, 1e-12});
  const auto devices = [](std::vector<Device*> group) {
    return Choice{DeviceGroups(1, std::move(group)), SplitMode::kTensor, {}};
  };
  Device& roomy = sim::family().provide({"ROOM.0", "roomy", DeviceType::kCpu, size_t{1} << 36});
  machine.devices[0].name = "ROOM.0";
  const Verdict alone = judged(*model_, asked(machine), devices({&roomy}));
  const size_t needed = alone.memory[0].use.total();
  machine.devices[0].name = "TIGHT.0";
  machine.devices[1].name = "ROOM.0";
  Device& tight = sim::family().provide({"TIGHT.0", "tight", DeviceType::kCpu, needed / 3});
  const FoundShares found = fastest(asked(machine), devices({&tight, &roomy}));
  EXPECT_FALSE(found.even.fits);
  EXPECT_TRUE(found.best.fits);
  EXPECT_LT(share(found, 0), 0.4);
  EXPECT_GT(share(found, 0), 0.05);  // the choice also uses the memory of the small device

  Device& smaller = sim::family().provide({"ROOM.0", "no room", DeviceType::kCpu, needed / 3});
  const FoundShares none = fastest(asked(machine), devices({&tight, &smaller}));
  EXPECT_FALSE(none.best.fits);
}

TEST_F(Shares, DivideLayersBySpeed) {
  // In a prompt, both devices work at the same time. The first device is three times as fast, and the model has four
  // layers.
  const machine::MachineModel machine = described_machine({1e-12, 3e-12});
  const Choice layers{cpu_groups({1, 1}), SplitMode::kLayer, {}};
  Asked question = asked(machine, {64, 0, 0}, 8);
  question.objective = Objective::kPrompt;
  const FoundShares found = fastest(question, layers);
  Choice three_to_one = layers;
  three_to_one.shares = {3, 1};
  EXPECT_EQ(found.best.split_key, judged(*model_, question, three_to_one).split_key);
}

}  // namespace
}  // namespace shoal::tuning
