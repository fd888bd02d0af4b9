// External ops on meta devices. Layouts of all sources are tried on 2 to 4 CPU devices.
#include <gmock/gmock.h>

#include "base/error.h"
#include "graph/external_op.h"
#include "graph/text.h"
#include "meta/meta.h"
#include "tests/devices/cpu_configuration.h"
#include "tests/meta/mesh.h"
#include "tests/support/external_ops.h"
#include "tests/support/rule_layouts.h"

namespace shoal::test {
namespace {

using testing::AllOf;
using testing::ContainsRegex;
using testing::HasSubstr;
using testing::Not;
using testing::ThrowsMessage;

const char* const kGraphs[] = {
    "weight %x f32 [7, 5, 3]\nweight %z f32 [7, 5, 3]\n"
    "%y = external(%x, %z) {op=\"test.lerp\", args=\"0.25\"}\noutput %y\n",
    "weight %x f32 [7, 5]\nweight %w f32 [7]\n%y = external(%x, %w) {op=\"test.dot\"}\noutput %y\n",
    "weight %x f32 [7, 5, 3]\n%y = external(%x) {op=\"test.reverse\"}\noutput %y\n",
    // External ops between other ops, with a slice that is not contiguous.
    "weight %w f32 [6, 8]\nweight %x f32 [6, 5]\nweight %v f32 [4]\n%p = mul_mat(%w, %x)\n"
    "%s = slice(%p) {begin=2, length=4}\n%c = contiguous(%s)\n%r = external(%c) {op=\"test.reverse\"}\n"
    "%l = external(%c, %r) {op=\"test.lerp\", args=\"2\"}\n%y = external(%l, %v) {op=\"test.dot\"}\noutput %y\n",
};

class ExternalOpLayouts : public testing::TestWithParam<int> {};

TEST_P(ExternalOpLayouts, GiveSameResultsAsOneDevice) {
  register_test_ops();
  const CpuConfiguration configuration("devices=4,threads=1");
  LayoutTrials trials(GetParam());
  for (const char* text : kGraphs) {
    const auto outcome = trials.run(text, 60);
    EXPECT_EQ(outcome.problem, "") << text;
    EXPECT_GE(outcome.trials, 1) << text;
  }
}

INSTANTIATE_TEST_SUITE_P(Ranks, ExternalOpLayouts, testing::Values(2, 3, 4));

/// The graph on a meta device of two CPU devices. x is split along axis 0: 5 and 2 elements.
struct OnMesh {
  explicit OnMesh(const std::string& text) {
    register_test_ops();
    loaded.emplace(text, *mesh.device);
  }
  void plan() { plan_ = backend->create_plan(loaded->graph); }
  std::string text() {
    plan();
    return to_string(meta::plan_of(*plan_));
  }

  CpuMesh mesh{2, {{"x", meta::Layout::split(0, meta::Partition(2, {{5, {0}}, {2, {1}}}))}}};
  std::optional<Loaded> loaded;
  std::unique_ptr<Backend> backend = mesh.device->init("threads=1");
  std::unique_ptr<GraphPlan> plan_;
};

TEST(ExternalOpPlan, ReducesSummedFactor) {
  const std::string text = OnMesh(kGraphs[1]).text();
  EXPECT_THAT(text, HasSubstr("split 0 [5:{0} 2:{1}]"));
  EXPECT_THAT(text, ContainsRegex("y +f32 +\\[5\\] +partial"));
}

TEST(ExternalOpPlan, GathersSourcesOfOpsWithoutRule) {
  const std::string text = OnMesh(kGraphs[2]).text();
  EXPECT_THAT(text, ContainsRegex("y +f32 +\\[7, 5, 3\\] +mirrored"));
  EXPECT_THAT(text, HasSubstr("all_gather"));
}

TEST(ExternalOpPlan, KeepsSplitOfParallelFactor) {
  const std::string text = OnMesh(kGraphs[0]).text();
  EXPECT_THAT(text, ContainsRegex("y +f32 +\\[7, 5, 3\\] +split 0 .5:.0. 2:.1.."));
  EXPECT_THAT(text, Not(HasSubstr("all_")));
}

void run_nothing(const shoal_op_node*, const shoal_op_launch*) {}

TEST(ExternalOpPlan, ReportsBadRuleWithTheNameOfTheOp) {
  const RegisteredOp op("test.bad_rule", "a b c -> a c", 1, infer_like_first, run_nothing);
  OnMesh one("weight %x f32 [7, 5]\n%y = external(%x) {op=\"test.bad_rule\"}\noutput %y\n");
  EXPECT_THAT([&] { one.plan(); },
              ThrowsMessage<InvalidArgument>(AllOf(HasSubstr("rule 'a b c -> a c' of "),
                                                   HasSubstr("op=\"test.bad_rule\""), HasSubstr("expected"))));
}

TEST(ExternalOpPlan, RefusesRuleThatContradictsInference) {
  const auto infer = [](const shoal_op_node* node, shoal_op_tensor* result, char*, size_t) -> int32_t {
    *result = node->sources[0];
    result->shape[0] = 7;
    return 0;
  };
  const RegisteredOp op("test.bad_infer", "a b -> a b", 1, +infer, run_nothing);
  OnMesh one("weight %x f32 [7, 5]\n%y = external(%x) {op=\"test.bad_infer\"}\noutput %y\n");
  EXPECT_THAT([&] { one.plan(); }, ThrowsMessage<InvalidArgument>(HasSubstr(
                                       "the rule of op 'test.bad_infer' gives rank 0 a result [5, 5], but the function "
                                       "infer gives [7, 5]; correct the rule, and test it with check_op")));
}

TEST(ExternalOpPlan, NamesRemedyForMissingKernel) {
  OpOfTest gpu_only("test.gpu_only", "a b -> a b", 1, infer_like_first, run_nothing);
  gpu_only.kernel.family = "CUDA";
  register_op(gpu_only.op);
  {
    OnMesh one("weight %x f32 [7, 5]\n%y = external(%x) {op=\"test.gpu_only\"}\noutput %y\n");
    EXPECT_FALSE(one.mesh.device->supports_op(*one.loaded->graph.nodes()[0]));
    EXPECT_THAT([&] { one.plan(); }, ThrowsMessage<DeviceError>(
                                         HasSubstr("op 'test.gpu_only' has no kernel for CPU, only for: CUDA; register "
                                                   "a kernel for CPU, or run the node on another device")));
  }
  unregister_op("test.gpu_only");
}

}  // namespace
}  // namespace shoal::test
