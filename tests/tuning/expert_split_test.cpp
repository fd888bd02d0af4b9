// What the split policy chooses for routed experts against predictions of both ways, which come from plans.
#include "models/place/expert_split.h"

#include <fmt/format.h>
#include <gtest/gtest.h>

#include "tests/models/described_machine.h"
#include "tests/models/hollow_model.h"
#include "tests/models/tiny_model.h"
#include "tests/support/temporary.h"
#include "tuning/predict.h"

namespace shoal::tuning {
namespace {

using namespace models;

struct Case {
  int64_t ff, experts, used;
  DType dtype;
  int devices;
  const char* ratio;
};

std::unique_ptr<Model> model_of(const Case& one) {
  HollowModel hollow(2, 512, one.ff, 8, 4, 256);
  hollow.h.experts = one.experts, hollow.h.experts_used = one.used;
  hollow.dtype = all_of(one.dtype);
  const test::TemporaryFile file("experts.gguf");
  hollow.write(file.path);
  return open_model(file.path);
}

/// Generation of one token, or a prompt of one batch, and what was chosen.
struct Outcome {
  double seconds = 0;
  ExpertChoice choice;
  int64_t collectives = 0;
};

Outcome predicted(const Case& one, const Model& model, const machine::MachineModel& machine, ExpertSplit way,
                  int64_t tokens) {
  models::PlacementOptions placement{one.ratio, 1};
  placement.experts = way, placement.expert_tokens = tokens;
  const Workload work{tokens > 1 ? tokens : 0, tokens > 1 ? 0 : 1, 0};
  const Scenario scenario{model, machine, placement, {.context = 1024, .batch = tokens}, {}, work};
  Candidate candidate{cpu_groups({one.devices}), SplitMode::kTensor, {}};
  if (*one.ratio != 0) candidate.shares = parse_ratio(one.ratio, one.devices);
  const models::Placement there(model, candidate.groups, placement_of(candidate, scenario));
  const Prediction made = scenario.predict(candidate, there, plan_to_load(model, there, scenario.session, {}));
  const PhasePrediction& phase = tokens > 1 ? *made.prompt : *made.generation;
  return {phase.seconds, there.experts(), phase.collective_count()};
}

TEST(ExpertSplit, TheFasterOfThePredictionsIsChosen) {
  int whole = 0, inside = 0;
  for (const Case& one : {Case{768, 32, 8, DType::kQ4_K, 2, ""},
                          {768, 32, 8, DType::kQ4_K, 4, ""},
                          {768, 32, 8, DType::kQ4_K, 8, ""},
                          {768, 32, 8, DType::kQ8_0, 4, ""},
                          {768, 32, 8, DType::kQ4_K, 3, "2,1,1"},
                          {1024, 8, 2, DType::kF16, 2, ""},
                          {1024, 8, 2, DType::kQ4_K, 8, ""},
                          {1024, 64, 10, DType::kQ4_K, 8, ""},
                          {768, 64, 8, DType::kQ4_K, 6, ""},
                          {1024, 64, 10, DType::kQ4_K, 8, "3,3,1,1,2,2,1,1"},
                          {1024, 4, 2, DType::kF16, 6, ""},
                          {512, 64, 4, DType::kQ4_K, 4, "3,1,1,1"}}) {
    const auto model = model_of(one);
    const machine::MachineModel machine =
        described_machine(std::vector<double>(static_cast<size_t>(one.devices), 1e-10));
    for (const int64_t tokens : {1, 64}) {
      SCOPED_TRACE(fmt::format("{} of {} experts of {} in {} on {} ({}), {} tokens", one.used, one.experts, one.ff,
                               name_of(one.dtype), one.devices, one.ratio, tokens));
      const Outcome columns = predicted(one, *model, machine, ExpertSplit::kInside, tokens);
      const Outcome experts = predicted(one, *model, machine, ExpertSplit::kWhole, tokens);
      const Outcome chosen = predicted(one, *model, machine, ExpertSplit::kAuto, tokens);
      EXPECT_EQ(columns.collectives, experts.collectives) << "links make no difference";
      const double fastest = std::min(columns.seconds, experts.seconds);
      // The estimates differ by the seconds that the choice was made by.
      EXPECT_NEAR(experts.seconds - columns.seconds, chosen.choice.whole - chosen.choice.inside,
                  0.02 * columns.seconds);
      EXPECT_EQ(chosen.seconds, predicted(one, *model, machine, chosen.choice.split, tokens).seconds);
      EXPECT_LE(chosen.seconds, 1.01 * fastest);
      ++(chosen.choice.split == ExpertSplit::kWhole ? whole : inside);
    }
  }
  EXPECT_GE(whole, 4);
  EXPECT_GE(inside, 4);
}

TEST(ExpertSplit, SlowDevicesWithFewExpertsAreWaitedFor) {
  // The second device takes four times as long, and has a quarter of the experts.
  const Case one{768, 32, 8, DType::kQ4_K, 2, "4,1"};
  const auto model = model_of(one);
  const machine::MachineModel machine = described_machine({1e-10, 4e-10});
  const Outcome experts = predicted(one, *model, machine, ExpertSplit::kWhole, 1);
  const Outcome columns = predicted(one, *model, machine, ExpertSplit::kInside, 1);
  const double expert = 3 * 512 * 768 * 1e-10;
  EXPECT_GT(experts.seconds, columns.seconds * 0.5);
  EXPECT_GT(experts.seconds, 2 * 8 * 0.8 * expert) << "at least the average of the first, in two layers";
}

}  // namespace
}  // namespace shoal::tuning
