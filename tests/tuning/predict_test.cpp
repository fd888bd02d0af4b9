// Compares predictions on described machines with sums calculated here. Also tests names and keys of choices.
#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include "base/error.h"
#include "tests/models/described_machine.h"
#include "tests/models/hollow_model.h"
#include "tests/models/tiny_model.h"
#include "tests/support/temporary.h"
#include "tests/tuning/asking.h"

namespace shoal::tuning {
namespace {

using namespace machine;
using namespace meta;
using namespace models;

using ::testing::HasSubstr;
using ::testing::ThrowsMessage;

/// Opens a model with 4 layers whose costs are easy to add up. The model file is removed directly after it is opened.
class Predict : public ::testing::Test {
 protected:
  static constexpr double kLayer = 512.0 * 512 * 2 + 512.0 * 256 * 2 + 3 * 512.0 * 1024, kHead = 512.0 * 2048;
  static constexpr double kSecond = 1e-12;

  void SetUp() override {
    HollowModel hollow(4, 512, 1024, 8, 4, 2048);
    hollow.dtype = all_of(DType::kF16);
    const test::TemporaryFile file("hollow.gguf");
    hollow.write(file.path);
    model_ = open_model(file.path);
  }

  static Choice on(int devices, std::vector<double> shares = {}, SplitMode mode = SplitMode::kTensor) {
    std::vector<int> sizes =
        mode == SplitMode::kLayer ? std::vector<int>(static_cast<size_t>(devices), 1) : std::vector<int>{devices};
    return {cpu_groups(sizes), mode, std::move(shares)};
  }

  Verdict predicted(const Choice& candidate, const machine::MachineModel& machine, const Workload& workload,
                    int64_t batch = 512) const {
    return judged(*model_, asked_of(machine, {.context = 4096, .batch = batch}, {}, workload), candidate);
  }

  std::unique_ptr<Model> model_;
};

TEST_F(Predict, TokenTimeIncludesProductsAndRunOverhead) {
  machine::MachineModel machine = described_machine({kSecond});
  machine.devices[0].run_seconds = 1e-3;
  const Verdict one = predicted(on(1), machine, {0, 100, 0});
  ASSERT_TRUE(one.generation);
  EXPECT_FALSE(one.prompt);
  const double token = (4 * kLayer + kHead) * kSecond + 1e-3;
  EXPECT_NEAR(one.generation->seconds, 100 * token, 1e-9 * token);
  EXPECT_NEAR(one.generation->rate, 1 / token, 1e-6 / token);
  EXPECT_DOUBLE_EQ(one.generation->host, 1e-3);
  ASSERT_EQ(one.generation->ranks.size(), 1u);
  EXPECT_NEAR(rank_seconds(*one.generation, 0), token, 1e-9 * token);
  EXPECT_EQ(one.generation->imbalance, 0);
}

TEST_F(Predict, PromptTimeIsSumOfBatchTimes) {
  const machine::MachineModel machine = described_machine({kSecond});
  // 700 tokens give batches of 512, 128 and 64 tokens. The last batch has 4 padding tokens. Each batch has one output.
  const Verdict p = predicted(on(1), machine, {700, 0, 0});
  EXPECT_NEAR(p.prompt->seconds, (704 * 4 * kLayer + 3 * kHead) * kSecond, 1e-9);
  EXPECT_NEAR(p.prompt->rate, 700 / p.prompt->seconds, 1e-6 * p.prompt->rate);
  // This batch shape is not one of the shapes that a session reserves.
  const Verdict shorter = predicted(on(1), machine, {20, 0, 0});
  EXPECT_NEAR(shorter.prompt->seconds, (32 * 4 * kLayer + kHead) * kSecond, 1e-9);
}

TEST_F(Predict, ReadsOnlyFilledCacheRows) {
  machine::MachineModel machine = described_machine({0});
  machine.devices[0].attention_bandwidth = 1e9;
  const auto seconds = [&](int64_t generate, int64_t depth) {
    return predicted(on(1), machine, {0, generate, depth}).generation->seconds / static_cast<double>(generate);
  };
  // Seconds to read a cache row. In each of 4 layers, the row has keys and values of 4 heads, with 64 elements of two
  // bytes each.
  const double row = 4.0 * 2 * 4 * 64 * 2 / 1e9;
  EXPECT_NEAR(seconds(1, 1000) - seconds(1, 0), 1000 * row, 0.02 * 1000 * row);
  EXPECT_NEAR(seconds(101, 0) - seconds(1, 0), 50 * row, 0.02 * 50 * row);
}

TEST_F(Predict, AttentionTimeOfPromptGrowsQuadratically) {
  machine::MachineModel machine = described_machine({0});
  machine.devices[0].attention_rate = 1e9;
  const auto seconds = [&](int64_t tokens, int64_t depth, int64_t batch) {
    return predicted(on(1), machine, {tokens, 0, depth}, batch).prompt->seconds;
  };
  // A prompt of twice the length takes four times as long. This also holds if the prediction evaluates only some of the
  // batches.
  EXPECT_NEAR(seconds(2048, 0, 256) / seconds(1024, 0, 256), 4, 0.1);
  EXPECT_NEAR(seconds(2048, 0, 64) / seconds(2048, 0, 256), 1, 0.05);
  EXPECT_NEAR(seconds(1024, 1536, 256) / seconds(1024, 0, 256), 4, 0.1);
}

TEST_F(Predict, UnevenSharesCauseWaiting) {
  constexpr double kLatency = 2e-6;
  const machine::MachineModel machine = described_machine({kSecond, kSecond}, kLatency);
  const PhasePrediction even = *predicted(on(2), machine, {0, 1, 0}).generation;
  const double collectives = even.communication();
  EXPECT_GE(even.collective_count(), 8);  // two all-reduces per layer
  EXPECT_NEAR(collectives, static_cast<double>(even.collective_count()) * kLatency, 1e-12);
  EXPECT_NEAR(even.seconds, (4 * kLayer + kHead) / 2 * kSecond + collectives, 1e-9);
  EXPECT_NEAR(even.imbalance, 0, 1e-9);
  const PhasePrediction uneven = *predicted(on(2, {3, 1}), machine, {0, 1, 0}).generation;
  EXPECT_NEAR(uneven.seconds, (4 * kLayer + kHead) * 3 / 4 * kSecond + collectives, 1e-9);
  EXPECT_GT(uneven.ranks[1].waiting, uneven.ranks[0].compute / 2);
  EXPECT_NEAR(rank_seconds(uneven, 0), uneven.seconds, 1e-9);
  EXPECT_NEAR(rank_seconds(uneven, 1), uneven.seconds, 1e-9);
}

TEST_F(Predict, LayerSplitOverlapsOnlyPromptBatches) {
  const machine::MachineModel machine = described_machine({kSecond, kSecond});
  const Verdict alone = predicted(on(1), machine, {2048, 16, 0}, 128);
  const Verdict layers = predicted(on(2, {}, SplitMode::kLayer), machine, {2048, 16, 0}, 128);
  EXPECT_NEAR(layers.generation->seconds, alone.generation->seconds, 1e-9);
  EXPECT_NEAR(layers.generation->imbalance, 0.5, 1e-6);
  // The prompt has 16 batches. The second device begins one batch later than the first device.
  EXPECT_NEAR(layers.prompt->seconds / alone.prompt->seconds, 17.0 / 32, 0.01);
  machine::MachineModel shared = machine;
  shared.domains = {{"one", 0, 1}};
  for (machine::DeviceModel& device : shared.devices) device.domain = 0;
  EXPECT_NEAR(predicted(on(2, {}, SplitMode::kLayer), shared, {2048, 0, 0}, 128).prompt->seconds, alone.prompt->seconds,
              0.01 * alone.prompt->seconds);
}

TEST_F(Predict, PredictsHugePromptsQuickly) {
  // A simulation of two billion single tokens would take hours and exceed the memory of any machine.
  constexpr int64_t kHuge = 2000000000;
  const machine::MachineModel machine = described_machine({kSecond, kSecond});
  const auto prompt = [&](const Choice& candidate, int64_t tokens, int64_t batch) {
    return *judged(*model_, asked_of(machine, {.context = kHuge, .batch = batch}, {}, {tokens, 0, 0}), candidate)
                .prompt;
  };
  for (const int64_t batch : {int64_t{1}, int64_t{128}}) {
    const auto batches = static_cast<double>(kHuge / batch);
    const double each = 4 * kLayer * static_cast<double>(batch) + kHead;
    EXPECT_NEAR(prompt(on(1), kHuge, batch).seconds / (batches * each * kSecond), 1, 1e-6);
    const PhasePrediction layers = prompt(on(2, {}, SplitMode::kLayer), kHuge, batch);
    const PhasePrediction shorter = prompt(on(2, {}, SplitMode::kLayer), 256 * batch, batch);
    EXPECT_NEAR(layers.seconds / (shorter.seconds / 256 * batches), 1, 0.01);
    const PhasePrediction both = prompt(on(2), kHuge, batch);
    EXPECT_GE(both.collective_count(), 8 * (kHuge / batch));
  }
}

TEST_F(Predict, PollCanStopPrediction) {
  struct Ended {};
  const machine::MachineModel machine = described_machine({kSecond});
  int asked = 0;
  const auto poll = [&asked] {
    if (++asked == 3) throw Ended();
  };
  Chooser chooser(*model_, asked_of(machine, {.context = 4096, .batch = 512}, {}, {4096, 0, 0}), {.poll = poll});
  EXPECT_THROW(chooser.judge(on(1)), Ended);
  EXPECT_EQ(asked, 3);
}

TEST_F(Predict, IncludesCopiesBetweenLayers) {
  machine::MachineModel machine = described_machine({kSecond, kSecond});
  machine.copy_latency = 1e-3;
  const PhasePrediction token = *predicted(on(2, {}, SplitMode::kLayer), machine, {0, 1, 0}).generation;
  EXPECT_GE(token.copies, 1e-3);
  EXPECT_NEAR(token.seconds, (4 * kLayer + kHead) * kSecond + token.copies, 1e-9);
}

TEST_F(Predict, ClipsWorkloadToContext) {
  const machine::MachineModel machine = described_machine({kSecond});
  EXPECT_EQ(predicted(on(1), machine, {4097, 0, 0}).work, (Workload{4096, 0, 0}));
  EXPECT_EQ(predicted(on(1), machine, {0, 128, 4000}).work, (Workload{0, 96, 4000}));
}

TEST_F(Predict, RejectsUnknownDevicesAndDtypes) {
  const machine::MachineModel machine = described_machine({kSecond});
  EXPECT_THAT([&] { predicted(on(2), machine, {}); },
              ThrowsMessage<InvalidArgument>(HasSubstr("has no device 'CPU1'; it has CPU0")));
  machine::MachineModel other = machine;
  other.devices[0].products.erase("f16");
  EXPECT_THAT([&] { predicted(on(1), other, {0, 1, 0}); }, ThrowsMessage<InvalidArgument>(HasSubstr("f16")));
}

TEST_F(Predict, RatiosWithEqualSplitsHaveEqualSplitKeys) {
  const auto key = [&](const Choice& candidate) {
    return split_key(*model_, models::Placement(*model_, candidate.groups, placement_options(candidate, {})));
  };
  EXPECT_EQ(key(on(2, {3, 1})), key(on(2, {6, 2})));
  EXPECT_EQ(key(on(2)), key(on(2, {1, 1})));
  EXPECT_EQ(key(on(2)), key(on(2, {1000, 1001})));
  EXPECT_NE(key(on(2)), key(on(2, {3, 1})));
  EXPECT_NE(key(on(2, {1, 3})), key(on(2, {3, 1})));
  EXPECT_NE(key(on(1)), key(on(2)));
  EXPECT_NE(key(on(2, {3, 1}, SplitMode::kLayer)), key(on(2, {1, 1}, SplitMode::kLayer)));
  EXPECT_EQ(key(on(2, {3, 1}, SplitMode::kLayer)), key(on(2, {3.1, 1}, SplitMode::kLayer)));
}

TEST_F(Predict, CountsUnitsOfEachGroupOfSplitTensors) {
  using Units = std::map<CutGroup, int64_t>;
  EXPECT_EQ(split_units(model_->hparams, model_->split_tensors()),
            (Units{{CutGroup::kQueryHeads, 4}, {CutGroup::kFeedForward, 32}, {CutGroup::kVocabulary, 64}}));
  auto quantised = open_model(tiny_model_path("q4_k_m"));
  EXPECT_EQ(split_units(quantised->hparams, quantised->split_tensors()).at(CutGroup::kQueryHeads), 1);
  EXPECT_EQ(split_units(quantised->hparams, quantised->split_tensors()).at(CutGroup::kFeedForward), 3);
}

TEST(Choice, RoundTripsThroughJson) {
  Choice choice{cpu_groups({2}), SplitMode::kTensor, {0.75, 0.25}};
  choice.host = {4, 9};
  choice.context = 512;
  choice.experts = ExpertSplit::kWhole;
  choice.latent = LatentSplit::kRows;
  choice.cache_k = DType::kQ8_0;
  const Choice told = with_json({cpu_groups({2})}, to_json(choice));
  EXPECT_EQ(told.shares, choice.shares);
  EXPECT_EQ(told.host, choice.host);
  EXPECT_EQ(told.context, 512);
  EXPECT_EQ(told.experts, choice.experts);
  EXPECT_EQ(told.latent, choice.latent);
  EXPECT_EQ(told.cache_k, choice.cache_k);
  EXPECT_FALSE(told.cache_v);
  EXPECT_THAT([&] { with_json({cpu_groups({3})}, to_json(choice)); },
              ThrowsMessage<CommError>(HasSubstr("process 0 uses 2 devices, but this process uses 3;")));
}

TEST(Choice, NameContainsDevicesModeAndRatio) {
  const DeviceGroups both = cpu_groups({2}), each = cpu_groups({1, 1}), pairs = cpu_groups({2, 1});
  EXPECT_EQ((Choice{cpu_groups({1}), SplitMode::kTensor, {}}.name()), "CPU0");
  EXPECT_EQ((Choice{both, SplitMode::kTensor, {0.75, 0.25}}.name()), "CPU0,CPU1 tensor 3,1");
  EXPECT_EQ((Choice{each, SplitMode::kLayer, {}}.name()), "CPU0,CPU1 layer even");
  EXPECT_EQ((Choice{pairs, SplitMode::kLayer, {2, 1}}.name()), "CPU0+CPU1,CPU2 layer 2,1");
  EXPECT_EQ(ratio_text(std::vector<double>{0.6, 0.4}), "3,2");
  EXPECT_EQ(ratio_text(std::vector<double>{0, 5}), "0,1");
  const std::vector<double> odd = parse_ratio(ratio_text(std::vector<double>{0.123456, 0.876544}), 2);
  EXPECT_NEAR(odd[0], 0.123456, 1e-8);
}

TEST(Objective, IsParsedByName) {
  for (const Objective one : {Objective::kGeneration, Objective::kPrompt, Objective::kMix}) {
    EXPECT_EQ(parse_objective(name_of(one)), one);
  }
  EXPECT_THAT([] { parse_objective("speed"); }, ThrowsMessage<InvalidArgument>(HasSubstr("generation, prompt or mix")));
}

TEST(ClippedWorkload, FitsIntoTheContext) {
  EXPECT_EQ(clipped({512, 128, 0}, 4096), (Workload{512, 128, 0}));
  EXPECT_EQ(clipped({512, 128, 0}, 100), (Workload{100, 100, 0}));
  EXPECT_EQ(clipped({512, 128, 90}, 100), (Workload{10, 10, 90}));
  EXPECT_EQ(clipped({512, 128, 900}, 100), (Workload{1, 1, 99}));
}

}  // namespace
}  // namespace shoal::tuning
