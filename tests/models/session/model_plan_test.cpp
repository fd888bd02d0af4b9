// Tests the predicted memory of a model with mapped weights and with copied weights. llama_test.cpp checks that the
// prediction equals the allocations.
#include "models/session/model_plan.h"

#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include "base/error.h"
#include "meta/meta.h"
#include "tests/models/tiny_model.h"

namespace shoal::models {
namespace {

TEST(ModelPlanMemory, MappedWeightsNeedNoAllocation) {
  // The device has enough memory for the cache and the graphs, but not for the weights.
  const LimitedCpuDevices limited("memory=4M");
  auto model = open_model(tiny_model_path("q8_0"));
  const SessionOptions options{.context = 64, .batch = 4};
  Placement placement(*model, cpu_devices(1), {{}, 1});
  const ModelPlan mapped(*model, placement, options), copied(*model, placement, options, {.use_mapping = false});
  EXPECT_EQ(mapped.memory[0].use.weights, 0u);
  EXPECT_EQ(mapped.memory[0].mapped, model->file.tensor_span().size());
  EXPECT_EQ(copied.memory[0].mapped, 0u);
  EXPECT_GE(copied.memory[0].use.weights, model->file.tensor_bytes());
  EXPECT_TRUE(has_room(mapped.memory));
  EXPECT_FALSE(fits(mapped.memory)) << "mapped weights are read from the disk";
  EXPECT_FALSE(has_room(copied.memory));
  EXPECT_THROW(load_weights(*model, placement, {}, {.use_mapping = false}), DeviceError);

  // The model runs with mapped weights.
  load_weights(*model, placement);
  {
    Session session(*model, placement, placement.init(), options);
    session.evaluate(std::vector<int32_t>{1, 527, 261});
    EXPECT_EQ(session.logits().size(), 1024u);
  }
  unload_weights(*model);
}

TEST(ModelPlanMemory, MetaDevicesUseNoMapping) {
  auto model = open_model(tiny_model_path("q8_0"));
  Placement placement(*model, cpu_devices(2), {{}, 1});
  for (const DeviceUse& use : ModelPlan(*model, placement, {}).memory) {
    EXPECT_EQ(use.mapped, 0u);
    EXPECT_GT(use.use.weights, 0u);
  }
}

TEST(ModelPlan, RefusesSecondSession) {
  auto model = open_model(tiny_model_path("q8_0"));
  const Placement placement(*model, cpu_devices(1), {"", 1});
  const SessionOptions options{.context = 64, .batch = 8};
  const auto plan = std::make_shared<ModelPlan>(*model, placement, options);
  load_weights(*model, placement);
  {
    const Session session(*model, placement, placement.init(), options, plan);
    EXPECT_THAT([&] { Session(*model, placement, placement.init(), options, plan); },
                testing::ThrowsMessage<InvalidArgument>(testing::HasSubstr("make a plan for each session")));
  }
  unload_weights(*model);
}

/// One case per implementation of the collectives. CTest also runs these cases with emulated GPUs.
class ModelPlanText : public ::testing::TestWithParam<const char*> {};

TEST_P(ModelPlanText, MatchesPlanOfSession) {
  const std::string comm = GetParam();
  const std::vector<Device*> devices = cpu_devices(2);
  const bool on_cpus = devices.front()->type() == DeviceType::kCpu, is_for_cpus = comm == "host";
  const bool is_for_gpus = comm == "p2p" || comm == "nccl";
  if ((is_for_gpus && on_cpus) || (is_for_cpus && !on_cpus)) GTEST_SKIP() << "not supported by these devices";
  auto model = open_model(tiny_model_path("q8_0"));
  Placement placement(*model, devices, {.ratio = "2,1", .threads = on_cpus ? 1 : 0, .comm = comm});
  const SessionOptions options{.context = 64, .batch = 8};
  const ModelPlan planned(*model, placement, options);
  load_weights(*model, placement);
  {
    Session session(*model, placement, placement.init(), options);
    const auto expect_same = [&](const PlannedGraph& expected, const std::vector<int32_t>& tokens) {
      session.evaluate(tokens);
      session.logits();
      const meta::Plan& running = meta::plan_of(*session.scheduler().scheduled().plan(0));
      EXPECT_EQ(meta::layouts_text(running), meta::layouts_text(expected.on()));
      EXPECT_EQ(meta::steps_text(running), meta::steps_text(expected.on()));
      for (int rank = 0; rank < 2; ++rank) {
        EXPECT_EQ(meta::local_text(running, rank), meta::local_text(expected.on(), rank));
        const auto &is = running.ranks[rank].memory, &was = expected.on().ranks[rank].memory;
        EXPECT_EQ(is.compute, was.compute);
        EXPECT_EQ(is.communication, was.communication);
      }
    };
    expect_same(planned.prompts.front(), {1, 527, 261, 3, 4, 5, 6, 7});
    expect_same(planned.step, {8});
  }
  unload_weights(*model);
}

INSTANTIATE_TEST_SUITE_P(Collectives, ModelPlanText, ::testing::Values("auto", "host", "staged", "p2p", "nccl"),
                         [](const auto& test) { return std::string(test.param); });

}  // namespace
}  // namespace shoal::models
