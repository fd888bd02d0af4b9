// Tests models whose mapped weights are larger than the memory. The disk bandwidth determines the predicted time of
// these models. Choices that read weights from the disk are recommended last.
#include <fmt/format.h>
#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include "tests/models/described_machine.h"
#include "tests/models/hollow_model.h"
#include "tests/models/tiny_model.h"
#include "tests/support/temporary.h"
#include "tests/tuning/asking.h"
#include "tuning/choose/compare.h"

namespace shoal::tuning {
namespace {

using namespace machine;
using namespace meta;
using namespace models;

using ::testing::AllOf;
using ::testing::HasSubstr;

constexpr double kDiskRate = 1e6;
const SessionOptions kShort{.context = 512, .batch = 32};

/// A machine with a disk. On the devices of the machine, products take almost no time.
machine::MachineModel with_disk(size_t devices) {
  machine::MachineModel machine = described_machine(std::vector<double>(devices, 1e-15));
  machine.disk_bandwidth = kDiskRate;
  return machine;
}

std::unique_ptr<Model> hollow(const HollowModel& hollow) {
  const test::TemporaryFile file("from_disk.gguf");
  hollow.write(file.path);
  return open_model(file.path);
}

/// A model with 4 layers. Without experts, each layer has about 5 MiB of weights in f16. With experts, each token uses
/// a quarter of the experts.
HollowModel shape(int64_t experts = 0) {
  HollowModel model(4, 512, 1024, 8, 4, 2048);
  model.dtype = all_of(DType::kF16);
  model.h.experts = experts, model.h.experts_used = experts / 4;
  return model;
}

/// Bytes of the product matrices whose names contain `part`.
double bytes_of(const Model& model, const std::string& part = "") {
  double bytes = 0;
  for (const Tensor* weight : model.weights.tensors()) {
    const bool is_read = weight->shape[1] > 1 && weight->name != "token_embd.weight";
    if (is_read && weight->name.find(part) != std::string::npos) bytes += static_cast<double>(weight->bytes());
  }
  return bytes;
}

Verdict predicted(const Model& model, const Choice& candidate, const Workload& workload) {
  const machine::MachineModel machine = with_disk(candidate.device_count());
  return judged(model, asked_of(machine, kShort, {}, workload), candidate);
}

Choice alone() {
  return {cpu_groups({1}), SplitMode::kTensor, {}};
}

TEST(FromDisk, EveryRunReadsAllWeights) {
  const auto model = hollow(shape());
  const double seconds = bytes_of(*model) / kDiskRate;
  const LimitedCpuDevices limited("memory=16M");
  // 100 tokens are three batches of 32 tokens and one batch of 4.
  const Verdict p = predicted(*model, alone(), {100, 10, 0});
  EXPECT_FALSE(p.fits);
  EXPECT_TRUE(p.from_disk);
  EXPECT_NEAR(p.generation->seconds / 10, seconds, 1e-3 * seconds);
  EXPECT_NEAR(p.generation->disk, seconds, 1e-9);
  EXPECT_NEAR(p.prompt->seconds, 4 * seconds, 4e-3 * seconds);
  EXPECT_NEAR(rank_seconds(*p.generation, 0), p.generation->seconds / 10, 1e-9);
  EXPECT_EQ(p.generation->imbalance, 0);
}

TEST(FromDisk, ReadsOnlyUsedExperts) {
  const auto model = hollow(shape(8));
  const LimitedCpuDevices limited("memory=16M");
  const double experts = bytes_of(*model, "_exps"), others = bytes_of(*model) - experts;
  ASSERT_GT(experts, 5 * others);
  const Verdict p = predicted(*model, alone(), {0, 10, 0});
  EXPECT_NEAR(p.generation->disk, (experts / 4 + others) / kDiskRate, 1e-3);
}

TEST(FromDisk, DevicesShareOneDisk) {
  const auto model = hollow(shape());
  const LimitedCpuDevices limited("memory=8M");
  const Choice layers{cpu_groups({1, 1}), SplitMode::kLayer, {}};
  const Verdict p = predicted(*model, layers, {64, 1, 0});
  EXPECT_TRUE(p.from_disk);
  EXPECT_NEAR(p.generation->seconds, bytes_of(*model) / kDiskRate, 1e-2);
  EXPECT_NEAR(p.prompt->seconds, 2 * bytes_of(*model) / kDiskRate, 2e-2);
}

TEST(FromDisk, WeightsThatFitAreReadFromMemory) {
  const auto model = hollow(shape());
  const LimitedCpuDevices limited("memory=64M");
  for (const bool repack : {false, true}) {
    const machine::MachineModel machine = with_disk(1);
    const Verdict p = judged(*model, asked_of(machine, kShort, {.repack = repack}, {64, 1, 0}), alone());
    EXPECT_TRUE(p.fits);
    EXPECT_FALSE(p.from_disk);
    EXPECT_EQ(p.generation->disk, 0);
    EXPECT_LT(p.generation->seconds, 0.1);
    EXPECT_EQ(p.memory[0].mapped > 0, !repack);
  }
}

Comparison compared(const Model& model, int devices) {
  machine::MachineModel machine = with_disk(static_cast<size_t>(devices));
  machine.disk_bandwidth = 1e15;  // this disk is so fast that its rate does not determine the order
  machine.algorithms[0].latency = machine.copy_latency = 1;
  Asked asked = asked_of(machine, kShort, {}, {0, 16, 0});
  asked.fixed = {cpu_groups({devices})};
  Chooser chooser(model, asked);
  return compare(chooser);
}

TEST(FromDisk, ReadingFromDiskIsRecommendedOnlyIfNothingFits) {
  const auto model = hollow(shape());
  {
    const LimitedCpuDevices limited("memory=18M");  // the weights fit on two devices, but not on one
    const Comparison found = compared(*model, 2);
    ASSERT_EQ(found.best, 0u);
    EXPECT_TRUE(found.verdicts[0].fits) << found.verdicts[0].choice.name();
    EXPECT_EQ(found.verdicts[0].choice.device_count(), 2u);
    EXPECT_FALSE(found.remedies);
    const auto disk =
        std::find_if(found.verdicts.begin(), found.verdicts.end(), [](const Verdict& one) { return one.from_disk; });
    ASSERT_NE(disk, found.verdicts.end());
    EXPECT_LT(seconds_of(*disk, Objective::kGeneration), seconds_of(found.verdicts[0], Objective::kGeneration));
  }
  const LimitedCpuDevices limited("memory=6M");
  const Comparison found = compared(*model, 2);
  ASSERT_EQ(found.best, 0u);
  EXPECT_TRUE(found.verdicts[0].from_disk);
  EXPECT_THAT(found.reason, HasSubstr("weights are read from the disk for every token"));
  ASSERT_TRUE(found.remedies);
  EXPECT_FALSE(found.remedies->lacking.empty());
}

TEST(FromDisk, ContextLeavesRoomForMappedWeights) {
  const auto model = open_model(tiny_model_path("q8_0"));
  const models::Placement placement(*model, cpu_devices(1), {{}, 1});
  const LoadOptions mapped{.repack = false};
  const auto needed = [&](int64_t context) {
    return ModelPlan(*model, placement, {.context = context, .batch = 32}, mapped).memory[0].needed();
  };
  const size_t at_256 = needed(256);
  {
    const LimitedCpuDevices limited(fmt::format("memory={}", at_256 + 1000));
    EXPECT_EQ(largest_context(*model, {cpu_groups({1})}, kShort, mapped, 1), 256);
  }
  const LimitedCpuDevices limited("memory=4M");
  EXPECT_EQ(largest_context(*model, {cpu_groups({1})}, kShort, mapped, 1), 512) << "a smaller context would not help";
  EXPECT_FALSE(largest_context(*model, {cpu_groups({1})}, kShort, {.use_mapping = false, .repack = false}, 1));
}

}  // namespace
}  // namespace shoal::tuning
