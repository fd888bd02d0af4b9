// The start-up code plans each graph once. The graphs of the memory check are also the graphs that run.
#include "tools/startup/deployment.h"

#include <fmt/format.h>
#include <gtest/gtest.h>

#include <fstream>

#include "machine/catalogue.h"
#include "machine/cost_model.h"
#include "meta/meta.h"
#include "tests/devices/cpu_configuration.h"
#include "tests/support/temporary.h"
#include "tests/tools/child.h"
#include "tools/bench/bench.h"

namespace shoal::tools {
namespace {

/// Number of graphs that the architecture has built.
int builds = 0;
const models::Architecture* real_architecture = nullptr;

void count_and_define(models::Decoder& decoder) {
  ++builds;
  real_architecture->define(decoder);
}

/// The parameter is a list of device groups.
class StartUp : public ::testing::TestWithParam<std::vector<std::string>> {
 protected:
  Request request() {
    Request request{models::open_model(kModel)};
    tuning::Asked& asked = request.asked;
    for (const std::string& list : GetParam()) asked.fixed.groups.push_back(Registry::instance().device_list(list));
    real_architecture = request.model->architecture;
    counting_ = *real_architecture;
    counting_.define = count_and_define;
    request.model->architecture = &counting_;
    builds = 0;
    asked.placement.threads = 1;
    asked.fixed.mode = asked.fixed.groups.size() > 1 ? models::SplitMode::kLayer : models::SplitMode::kTensor;
    asked.session = models::engine_options({.context = 128, .batch = 64, .candidates = 1}, 0);
    return request;
  }

  /// Unique ids of the local graphs of the first rank of each meta device.
  static std::vector<uint64_t> planned(const models::PlannedGraph& graph) {
    std::vector<uint64_t> uids;
    for (size_t d = 0; d < graph.plans.size(); ++d) {
      if (graph.plans[d]->ranks.size() > 1) uids.push_back(graph.plans[d]->ranks.front().graph->uid());
    }
    return uids;
  }
  static std::vector<uint64_t> running(const Deployment& deployment) {
    std::vector<uint64_t> uids;
    for (size_t d = 0; d < deployment.placement->devices().size(); ++d) {
      const int device = static_cast<int>(d);
      if (deployment.placement->policy_of(device) == nullptr) continue;
      const GraphPlan& plan = *deployment.engine->runner().scheduler().scheduled().plan(device);
      uids.push_back(meta::plan_of(plan).ranks.front().graph->uid());
    }
    return uids;
  }

  test::CpuConfiguration configuration_{"devices=3,threads=1"};
  models::Architecture counting_{};
};

TEST_P(StartUp, PlansEachGraphOnceAndRunsIt) {
  for (const bool fits_context : {false, true}) {
    Request asked = request();
    asked.asked.free.context = fits_context;
    asked.asked.least_context = 1;
    Deployment deployment = resolve(std::move(asked));
    EXPECT_EQ(builds, 5) << "one graph each for 1, 8, 16, 32 and 64 tokens";
    const auto step = planned(deployment.plan->step), prompt = planned(deployment.plan->prompts.front());
    load(deployment);
    start_engine(deployment, nullptr);
    models::Engine& engine = *deployment.engine;
    engine.submit(bench_tokens(64, deployment.model->hparams.vocab), {.most_tokens = 3});
    engine.step();
    EXPECT_EQ(running(deployment), prompt);
    for (int token = 1; token < 3; ++token) {
      engine.step();
      EXPECT_EQ(running(deployment), step);
    }
    EXPECT_EQ(engine.stats().generated_tokens, 3);
    EXPECT_EQ(builds, 5);
    EXPECT_EQ(engine.runner().compilations(), 0);
  }
}

/// The results equal the results of an engine that makes its own plan.
TEST_P(StartUp, PreparedPlanAndPlanMadeByEngineGiveSameResults) {
  Deployment deployment = resolve(request());
  load(deployment);
  const models::SessionOptions options = deployment.asked.session;
  const auto run = [&](models::Engine& engine) {
    engine.submit(bench_tokens(71, deployment.model->hparams.vocab), {.most_tokens = 2, .logprobs = 1});
    while (engine.step()) {
    }
    std::vector<models::TokenLogit> best;
    for (const models::Output& output : engine.take_outputs()) {
      if (output.token >= 0) best.push_back(output.best.front());
    }
    return best;
  };
  std::vector<models::TokenLogit> expected;
  {
    models::Engine own(*deployment.model, *deployment.placement, deployment.placement->init(), options);
    expected = run(own);
  }
  EXPECT_EQ(expected.size(), 2U);
  start_engine(deployment, nullptr);
  EXPECT_EQ(run(*deployment.engine), expected);
}

/// The costs come from a machine file. In this file, the CPU devices have the performance values of H200 GPUs.
TEST_P(StartUp, PlansWithCostsOfTheNamedMachine) {
  test::TemporaryFolder folder;
  machine::MachineModel described = machine::make_machine("H200x3-nvlink");
  for (size_t d = 0; d < described.devices.size(); ++d) described.devices[d].name = fmt::format("CPU{}", d);
  std::ofstream(folder.path() / "machine.json") << machine::to_json(described);
  Request asked = request();
  asked.machine = folder.path() / "machine.json";
  Deployment deployment = resolve(std::move(asked));
  bool has_mesh = false;
  for (Device* device : deployment.placement->devices()) {
    const auto* mesh = dynamic_cast<const meta::MetaDevice*>(device);
    if (mesh == nullptr) continue;
    has_mesh = true;
    EXPECT_EQ(mesh->plan_context().costs.collective(Collective::kAllReduce, 2, 1e6),
              described.collective_seconds(Collective::kAllReduce, std::vector<int>{0, 1}, 1e6));
    EXPECT_NE(machine::CostModel().collective(Collective::kAllReduce, 2, 1e6),
              described.collective_seconds(Collective::kAllReduce, std::vector<int>{0, 1}, 1e6));
  }
  EXPECT_EQ(deployment.machine.has_value(), has_mesh) << "a single device needs no machine";
}

using Groups = std::vector<std::string>;
INSTANTIATE_TEST_SUITE_P(Devices, StartUp,
                         ::testing::Values(Groups{"CPU0"}, Groups{"CPU0,CPU1"}, Groups{"CPU0,CPU1", "CPU2"}));

}  // namespace
}  // namespace shoal::tools
