// Tests the search for the largest context, and the remedies that the chooser suggests.
#include "tuning/choose/dimensions.h"

#include <fmt/format.h>
#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include "base/error.h"
#include "tests/models/described_machine.h"
#include "tests/models/tiny_model.h"
#include "tests/tuning/asking.h"
#include "tuning/choose/compare.h"

namespace shoal::tuning {
namespace {

using namespace machine;
using namespace meta;
using namespace models;

const LoadOptions kCopied{.use_mapping = false, .repack = false};

size_t needed(const Model& model, int devices, const SessionOptions& session, const LoadOptions& load = kCopied) {
  const models::Placement placement(model, cpu_devices(devices), {{}, 1});
  size_t most = 0;
  for (const DeviceUse& use : ModelPlan(model, placement, session, load).memory) most = std::max(most, use.use.total());
  return most;
}

bool does_fit(const Model& model, int devices, const SessionOptions& session) {
  const models::Placement placement(model, cpu_devices(devices), {{}, 1});
  return models::fits(ModelPlan(model, placement, session, kCopied).memory);
}

std::optional<int64_t> largest_on(const Model& model, int devices, const SessionOptions& session, int64_t least,
                                  const Margin& margin = {}) {
  return largest_context(model, {cpu_groups({devices})}, session, kCopied, least, margin);
}

TEST(LargestContext, FindsLargestThatFits) {
  auto model = open_model(tiny_model_path("q8_0"));
  for (const int devices : {1, 2}) {
    for (const int64_t room : {64, 256, 288, 480}) {
      const LimitedCpuDevices limited(
          fmt::format("memory={}", needed(*model, devices, {.context = room, .batch = 32})));
      const SessionOptions session{.context = 512, .batch = 32};
      const auto found = largest_on(*model, devices, session, 1);
      ASSERT_TRUE(found) << room;
      EXPECT_TRUE(does_fit(*model, devices, {.context = *found, .batch = 32})) << *found;
      EXPECT_FALSE(does_fit(*model, devices, {.context = *found + 32, .batch = 32})) << *found;
      EXPECT_EQ(*found, room / 32 * 32);
      // If a context of `least` tokens does not fit, the search finds no context.
      EXPECT_FALSE(largest_on(*model, devices, session, room + 32)) << room;
      EXPECT_EQ(largest_on(*model, devices, {.context = 40, .batch = 32}, 4096), 40);
    }
  }
}

TEST(Chooser, PlansRequestedNumberOfPromptBatches) {
  auto model = open_model(tiny_model_path("q8_0"));
  for (const bool is_context_free : {false, true}) {
    Asked asked;
    asked.fixed.groups = cpu_groups({2});
    asked.free.context = is_context_free;
    asked.placement.threads = 1;
    asked.session = {.context = 256, .batch = 32};
    const Chosen all = Chooser(*model, asked).choose();
    asked.most_prompts = 1;
    const Chosen largest = Chooser(*model, asked).choose();
    EXPECT_GT(all.plan->prompts.size(), 1u);
    EXPECT_EQ(largest.plan->prompts.size(), 1u);
    EXPECT_EQ(largest.plan->size.context, all.plan->size.context);
    ASSERT_EQ(largest.plan->memory.size(), 2u);
    for (size_t d = 0; d < 2; ++d) EXPECT_EQ(largest.plan->memory[d].use.total(), all.plan->memory[d].use.total());
  }
}

TEST(LargestContext, LeavesMarginFree) {
  auto model = open_model(tiny_model_path("q8_0"));
  const SessionOptions session{.context = 512, .batch = 32};
  const size_t at_256 = needed(*model, 1, {.context = 256, .batch = 32});
  const LimitedCpuDevices limited(fmt::format("memory={}", at_256 + 1000));
  EXPECT_EQ(largest_on(*model, 1, session, 1, {.bytes = 1000}), 256);
  EXPECT_LT(*largest_on(*model, 1, session, 1, {.bytes = 1001}), 256);
}

TEST(CacheTypes, WidestTypesThatFitAreChosen) {
  auto model = open_model(tiny_model_path("q8_0"));
  const SessionOptions session{.context = 512, .batch = 32};
  const auto needed_with = [&](DType k, DType v) {
    SessionOptions one = session;
    one.dtype_k = k, one.dtype_v = v;
    return needed(*model, 1, one);
  };
  const auto chosen_with = [&](size_t memory, bool frees_values) {
    const LimitedCpuDevices limited(fmt::format("memory={}", memory));
    Asked asked;
    asked.fixed = {cpu_groups({1})};
    asked.free.cache_k = true, asked.free.cache_v = frees_values;
    asked.placement.threads = 1;
    asked.session = session;
    asked.load = kCopied;
    Chooser chooser(*model, asked);
    const Chosen chosen = chooser.choose();
    const SessionOptions options = chooser.session_of(chosen.choice);
    EXPECT_EQ(chosen.plan->cache.context.tensors().front()->dtype, options.dtype_k);
    return std::pair(options.dtype_k, options.dtype_v);
  };
  constexpr DType kF16 = DType::kF16, kQ8 = DType::kQ8_0, kQ4 = DType::kQ4_0;
  EXPECT_EQ(chosen_with(needed_with(kF16, kF16), true), std::pair(kF16, kF16));
  EXPECT_EQ(chosen_with(needed_with(kF16, kF16) - 1, true), std::pair(kQ8, kQ8));
  EXPECT_EQ(chosen_with(needed_with(kQ8, kQ8) - 1, true), std::pair(kQ4, kQ4));
  EXPECT_EQ(chosen_with(needed_with(kQ8, kF16), false), std::pair(kQ8, kF16)) << "the value type is fixed";
  EXPECT_EQ(chosen_with(needed_with(kQ4, kQ4) - 1, true), std::pair(kQ4, kQ4)) << "no types fit";
}

TEST(LargestContext, LeavesHostMarginFree) {
  const auto margin = [](size_t total, bool on_host, size_t asked) {
    const DeviceUse use{"X", {}, {total, total}, 0, on_host};
    return margin_of(use, {.bytes = asked, .spare_host = true});
  };
  constexpr size_t kMiB = size_t{1} << 20;
  EXPECT_EQ(margin(50000 * kMiB, true, 0), 1000 * kMiB);
  EXPECT_EQ(margin(50000 * kMiB, true, 1024 * kMiB), 1024 * kMiB);
  EXPECT_EQ(margin(50000 * kMiB, false, 3), 3u);
  EXPECT_EQ(margin(2000 * kMiB, true, 0), 64 * kMiB);
  EXPECT_EQ(margin(160 * kMiB, true, 0), 10 * kMiB);
  auto model = open_model(tiny_model_path("q8_0"));
  const SessionOptions session{.context = 512, .batch = 32};
  const size_t at_512 = needed(*model, 1, session);
  const LimitedCpuDevices limited(fmt::format("memory={}", at_512 + 1000));
  EXPECT_EQ(largest_on(*model, 1, session, 1), 512);
  EXPECT_LT(*largest_on(*model, 1, session, 1, {.spare_host = true}), 512);
}

Comparison compared(const Model& model, Asked asked, int devices) {
  asked.fixed = {cpu_groups({devices})};
  Chooser chooser(model, asked);
  return compare(chooser);
}

/// Compares choices for devices that have too little memory for the model.
Comparison too_little(const Model& model, int devices, const SessionOptions& session) {
  const machine::MachineModel machine = described_machine(std::vector<double>(static_cast<size_t>(devices), 1e-12));
  return compared(model, asked_of(machine, session, kCopied, {0, 8, 0}), devices);
}

TEST(Judge, UsesFileWeightsIfRepackedWeightsDoNotFit) {
  auto model = open_model(SHOAL_SOURCE_DIR "/data/models/tiny-kjv-5m-q4_k_m.gguf");
  const SessionOptions session{.context = 128, .batch = 32};
  const size_t as_they_are = needed(*model, 2, session);
  ASSERT_LT(as_they_are + 100, needed(*model, 2, session, {.use_mapping = false})) << "repacked weights are larger";
  const LimitedCpuDevices limited(fmt::format("memory={}", as_they_are + 100));
  const machine::MachineModel machine = described_machine({1e-12, 1e-12});
  const Asked asked = asked_of(machine, session, {.use_mapping = false}, {0, 8, 0});
  EXPECT_TRUE(judged(*model, asked, {cpu_groups({2})}).fits);
  EXPECT_TRUE(compared(*model, asked, 2).best);
}

TEST(Remedies, SuggestedContextsFit) {
  auto model = open_model(tiny_model_path("q8_0"));
  const SessionOptions asked{.context = 512, .batch = 32};
  const LimitedCpuDevices limited(fmt::format("memory={}", needed(*model, 1, {.context = 256, .batch = 32})));
  const Comparison found = too_little(*model, 1, asked);
  EXPECT_FALSE(found.best);
  ASSERT_TRUE(found.remedies);
  const Remedies& remedies = *found.remedies;
  ASSERT_TRUE(remedies.context);
  EXPECT_EQ(remedies.context->context, 256);
  EXPECT_EQ(remedies.context->groups, remedies.asked.groups);
  EXPECT_TRUE(remedies.context->shares.empty());
  EXPECT_EQ(remedies.context->mode, remedies.asked.mode);
  ASSERT_TRUE(remedies.context_q8_0);
  EXPECT_GT(remedies.context_q8_0->context, 256);
  EXPECT_TRUE(does_fit(*model, 1, {remedies.context_q8_0->context, 32, DType::kQ8_0, DType::kQ8_0}));
  ASSERT_EQ(remedies.lacking.size(), 1u);
  EXPECT_EQ(remedies.lacking.front().device, "CPU0");
  EXPECT_EQ(found.reason, "");
}

TEST(Remedies, SuggestedQuantisationsFit) {
  auto model = open_model(tiny_model_path("f16"));
  auto smaller = open_model(tiny_model_path("q8_0"));
  const SessionOptions asked{.context = 128, .batch = 32};
  const LimitedCpuDevices limited(fmt::format("memory={}", needed(*smaller, 1, asked) * 11 / 10));
  const Comparison found = too_little(*model, 1, asked);
  ASSERT_TRUE(found.remedies);
  EXPECT_FALSE(found.remedies->context);  // the weights are too large
  EXPECT_NEAR(found.remedies->bits, 16, 0.5);
  ASSERT_TRUE(found.remedies->bits_that_fit);
  EXPECT_GE(*found.remedies->bits_that_fit, 8.5);
  EXPECT_LT(*found.remedies->bits_that_fit, 11);
  ASSERT_FALSE(found.remedies->quantisations.empty());
  EXPECT_EQ(found.remedies->quantisations.front(), "Q8_0");
  EXPECT_TRUE(does_fit(*smaller, 1, asked));
}

TEST(Remedies, DoNotSuggestQuantisationOfTheFile) {
  // The memory is slightly too small for the weights, which have 8.5 bits per weight in the file.
  auto model = open_model(tiny_model_path("q8_0"));
  const SessionOptions asked{.context = 128, .batch = 32};
  const LimitedCpuDevices limited(fmt::format("memory={}", needed(*model, 1, asked) - 64));
  const Comparison found = too_little(*model, 1, asked);
  ASSERT_TRUE(found.remedies);
  ASSERT_TRUE(found.remedies->bits_that_fit);
  EXPECT_THAT(found.remedies->quantisations, ::testing::Not(::testing::Contains("Q8_0")));
  EXPECT_EQ(found.remedies->quantisations.front(), "Q6_K");
}

TEST(Remedies, SuggestedDeviceCountIsEnough) {
  auto model = open_model(tiny_model_path("f16"));
  const SessionOptions asked{.context = 512, .batch = 32};
  for (const int enough : {2, 3, 4}) {
    const LimitedCpuDevices limited(fmt::format("memory={}", needed(*model, enough, asked) * 21 / 20));
    const Comparison found = too_little(*model, 1, asked);
    ASSERT_TRUE(found.remedies) << enough;
    ASSERT_TRUE(found.remedies->more_devices) << enough;
    EXPECT_TRUE(does_fit(*model, 1 + *found.remedies->more_devices, asked)) << enough;
    EXPECT_LE(1 + *found.remedies->more_devices, enough + 1);
    EXPECT_EQ(found.remedies->device, "CPU0");
  }
}

}  // namespace
}  // namespace shoal::tuning
