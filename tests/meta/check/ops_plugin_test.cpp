// Tests of the plug-in in examples/ops_plugin. The test project.ops_plugin builds the plug-in like an external project.
// SHOAL_TEST_OPS_PLUGIN is the path of the plug-in. Without this variable, the tests are skipped.
#include <gmock/gmock.h>

#include <cstdlib>

#include "base/error.h"
#include "devices/device.h"
#include "graph/external_op.h"
#include "meta/check/check_op.h"
#include "tests/meta/mesh.h"
#include "tests/support/rule_layouts.h"

namespace shoal::test {
namespace {

using testing::AllOf;
using testing::Contains;
using testing::HasSubstr;
using testing::IsEmpty;
using testing::Not;
using testing::ThrowsMessage;

const std::string kLerp =
    "weight %x f32 [7, 5, 2, 3]\nweight %z f32 [7, 5, 2, 3]\n%y = external(%x, %z) {op=\"example.lerp\", args=\"0.5\"}";
const std::string kDot = "weight %x f32 [7, 5]\nweight %w f32 [7]\n%y = external(%x, %w) {op=\"example.dot\"}";

struct OpsPlugin : testing::Test {
  void SetUp() override {
    const char* file = std::getenv("SHOAL_TEST_OPS_PLUGIN");
    if (file == nullptr) GTEST_SKIP() << "set SHOAL_TEST_OPS_PLUGIN to the plug-in of examples/ops_plugin";
    family = &registry.load(file);
  }
  void TearDown() override {
    if (family != nullptr && registry.find_family("example-ops") != nullptr) registry.unload("example-ops");
  }
  Registry& registry = Registry::instance();
  BackendReg* family = nullptr;
};

TEST_F(OpsPlugin, ProvidesOpsAndNoDevices) {
  EXPECT_EQ(family->name(), "example-ops");
  EXPECT_THAT(family->devices(), IsEmpty());
  EXPECT_THAT(registered_ops(), AllOf(Contains("example.lerp"), Contains("example.dot")));
  EXPECT_EQ(find_op("example.dot")->owner, "example-ops");
  EXPECT_EQ(&registry.load(registry.file_of(*family)), family) << "the second call loads nothing";
}

TEST_F(OpsPlugin, OpsAreCorrectAndRulesComplete) {
  EXPECT_EQ(to_string(check_op("example.lerp", {{kLerp}})), "op 'example.lerp' is correct");
  EXPECT_EQ(to_string(check_op("example.dot", {{kDot}})), "op 'example.dot' is correct");
}

TEST_F(OpsPlugin, GivesSameResultsOnSeveralDevices) {
  const CpuConfiguration configuration("devices=3,threads=1");
  LayoutTrials trials(3);
  for (const std::string& text : {kLerp, kDot}) {
    const auto outcome = trials.run(text + "\noutput %y\n", 40);
    EXPECT_EQ(outcome.problem, "");
    EXPECT_GE(outcome.trials, 10);
  }
}

TEST_F(OpsPlugin, IsNotUnloadedWhileAGraphUsesItsOps) {
  {
    Graph graph;
    TensorContext weights;
    parse_graph(kDot, graph, weights);
    EXPECT_THAT([&] { registry.unload("example-ops"); },
                ThrowsMessage<InvalidArgument>(
                    HasSubstr("op 'example.dot' cannot be unregistered: 1 graphs have nodes of the op; destroy")));
    EXPECT_NE(registry.find_family("example-ops"), nullptr);
  }
  registry.unload("example-ops");
  EXPECT_THAT(registered_ops(), Not(Contains("example.dot")));
  Graph graph;
  TensorContext weights;
  EXPECT_THAT([&] { parse_graph(kDot, graph, weights); },
              ThrowsMessage<InvalidArgument>(HasSubstr("expected a registered op, got 'example.dot'")));
}

/// Runs on a GPU if there is a CUDA device and the plug-in has CUDA kernels.
TEST_F(OpsPlugin, CudaKernelsGiveSameResultsAsCpuKernels) {
  registry.load_all();
  Device* gpu = registry.find_device("CUDA0");
  if (gpu == nullptr || find_op("example.dot")->kernel("CUDA") == nullptr) GTEST_SKIP() << "no GPU or no CUDA kernels";
  const auto backend = gpu->init(), alone = registry.init("CPU0:threads=1");
  for (const std::string& text : {kLerp, kDot}) {
    Graph graph, same;
    TensorContext weights, of_same;
    parse_graph(text + "\noutput %y\n", graph, weights);
    parse_graph(text + "\noutput %y\n", same, of_same);
    TensorValues leaves = random_leaves(graph, 3), of_cpu = random_leaves(same, 3);
    const Values got = run_graph(*backend, graph, leaves).at(graph.nodes()[0]);
    EXPECT_TRUE(close_to(got, run_graph(*alone, same, of_cpu).at(same.nodes()[0]), {1e-12}));
  }
}

}  // namespace
}  // namespace shoal::test
