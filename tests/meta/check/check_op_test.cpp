#include "meta/check/check_op.h"

#include <gmock/gmock.h>

#include "base/error.h"
#include "graph/ops/ops.h"
#include "tests/support/external_ops.h"

namespace shoal {
namespace {

using test::count;
using test::floats;
using test::infer_like_first;
using test::RegisteredOp;
using test::share;
using testing::AllOf;
using testing::HasSubstr;
using testing::ThrowsMessage;
using Kind = OpFinding::Kind;

const std::vector<OpCase> kOne{{"input %x f32 [6, 4]\n%y = external(%x) {op=\"check.op\"}"}};

/// Computes f(x, i) for each element i of the part.
template <float (*f)(const float* x, int64_t i, int64_t row_length)>
void map(const shoal_op_node* node, const shoal_op_launch* launch) {
  const auto [begin, end] = share(*launch, count(*node->result));
  const shoal_op_tensor& x = node->sources[0];
  for (int64_t i = begin; i < end; ++i) floats(*node->result)[i] = f(floats(x), i, x.shape[0]);
}
float twice(const float* x, int64_t i, int64_t) {
  return 2 * x[i];
}
float square(const float* x, int64_t i, int64_t) {
  return x[i] * x[i];
}
/// Depends on the whole row.
float minus_first(const float* x, int64_t i, int64_t length) {
  return x[i] - x[i / length * length];
}

TEST(CheckOp, AcceptsCorrectOps) {
  test::register_test_ops();
  const OpReport lerp = check_op("test.lerp", {{"input %x f32 [5, 3, 2]\ninput %z f32 [5, 3, 2]\n"
                                                "%y = external(%x, %z) {op=\"test.lerp\", args=\"0.25\"}"},
                                               {"input %x f32 [2, 2, 2, 3]\ninput %z f32 [2, 2, 2, 3]\n"
                                                "%y = external(%x, %z) {op=\"test.lerp\", args=\"2\"}"}});
  EXPECT_EQ(to_string(lerp), "op 'test.lerp' is correct");
  const OpReport dot =
      check_op("test.dot", {{"input %x f32 [7, 4]\nweight %w f32 [7]\n%y = external(%x, %w) {op=\"test.dot\"}"}});
  EXPECT_EQ(to_string(dot), "op 'test.dot' is correct");
}

TEST(CheckOp, AcceptsOpsWithoutRule) {
  test::register_test_ops();
  const OpReport report = check_op("test.reverse", {{"input %x f32 [6, 4]\n%y = external(%x) {op=\"test.reverse\"}"}});
  EXPECT_TRUE(report.findings.empty());
  EXPECT_EQ(to_string(report),
            "op 'test.reverse' is correct; it has no rule, so every rank of a meta device computes the whole result");
}

TEST(CheckOp, ExplainsWrongFactors) {
  const RegisteredOp op("check.op", "a b -> a b", 1, infer_like_first, map<minus_first>);
  const OpReport report = check_op("check.op", kOne);
  ASSERT_FALSE(report.is_correct());
  EXPECT_EQ(report.findings[0].what, "factor a");
  EXPECT_THAT(report.findings[0].problem, AllOf(HasSubstr("'a' split [3:{0} 3:{1}]: element [3, 0] is 0, expected ")));
  EXPECT_THAT(report.findings[0].remedy, HasSubstr("write '(a)' in every operand"));
  EXPECT_THAT(to_string(report), HasSubstr("error of op 'check.op', factor a: "));
}

TEST(CheckOp, ExplainsWrongSums) {
  // The result is the square of a sum, so partial results must not be added.
  const RegisteredOp op(
      "check.op", "k n -> n | sum k", 1,
      [](const shoal_op_node* node, shoal_op_tensor* result, char*, size_t) -> int32_t {
        *result = {SHOAL_OP_F32, {node->sources[0].shape[1], 1, 1, 1}, {}, nullptr};
        return 0;
      },
      [](const shoal_op_node* node, const shoal_op_launch* launch) {
        const int64_t k = node->sources[0].shape[0];
        const auto [begin, end] = share(*launch, count(*node->result));
        for (int64_t n = begin; n < end; ++n) {
          float sum = 0;
          for (int64_t i = 0; i < k; ++i) sum += floats(node->sources[0])[n * k + i];
          floats(*node->result)[n] = sum * sum;
        }
      });
  const OpReport report = check_op("check.op", kOne);
  ASSERT_EQ(report.findings.size(), 1u) << to_string(report);
  EXPECT_EQ(report.findings[0].what, "factor k");
}

TEST(CheckOp, ExplainsWrongLinearSources) {
  const RegisteredOp op("check.op", "a b -> a b | linear 0", 1, infer_like_first, map<square>);
  const OpReport report = check_op("check.op", kOne);
  ASSERT_EQ(report.findings.size(), 1u) << to_string(report);
  EXPECT_EQ(report.findings[0].what, "linear 0");
  EXPECT_THAT(report.findings[0].problem, HasSubstr("the sum of 2 addends: element [0, 0] is "));
  EXPECT_EQ(report.findings[0].remedy, "remove '0' after 'linear'");
}

TEST(CheckOp, ReportsMissingClaims) {
  const RegisteredOp op("check.op", "(a) b -> (a) b", 1, infer_like_first, map<twice>);
  const OpReport report = check_op("check.op", kOne);
  EXPECT_TRUE(report.is_correct());
  ASSERT_EQ(report.findings.size(), 2u) << to_string(report);
  EXPECT_EQ(report.findings[0].kind, Kind::kImprovement);
  EXPECT_EQ(report.findings[0].what + ": " + report.findings[0].remedy, "factor a: write 'a' without parentheses");
  EXPECT_EQ(report.findings[1].what + ": " + report.findings[1].remedy, "linear 0: write '| linear 0'");
}

TEST(CheckOp, ReportsFactorsThatNoExampleDivides) {
  const RegisteredOp op("check.op", "a b -> a b", 1, infer_like_first, map<square>);
  const OpReport report = check_op("check.op", {{"input %x f32 [6]\n%y = external(%x) {op=\"check.op\"}"}});
  ASSERT_EQ(report.findings.size(), 1u) << to_string(report);
  EXPECT_EQ(report.findings[0].kind, Kind::kUntested);
  EXPECT_EQ(report.findings[0].remedy, "add an example in which 'b' has at least 2 elements");
}

TEST(CheckOp, ReportsBadRules) {
  const RegisteredOp op("check.op", "a b, c -> a b", 1, infer_like_first, map<square>);
  const OpReport report = check_op("check.op", kOne);
  EXPECT_THAT(to_string(report), AllOf(HasSubstr("op 'check.op', rule: rule 'a b, c -> a b' of "),
                                       HasSubstr("expected 1 sources, got 2; correct the rule")));
}

TEST(CheckOp, ReportsInferenceThatIgnoresShards) {
  const RegisteredOp op(
      "check.op", "a b -> a b", 1,
      [](const shoal_op_node* node, shoal_op_tensor* result, char*, size_t) -> int32_t {
        *result = node->sources[0];
        result->shape[0] = 6;
        return 0;
      },
      map<square>);
  const OpReport report = check_op("check.op", kOne);
  EXPECT_THAT(to_string(report), HasSubstr("rank 0 gets [6, 4], its shard of the result is [3, 4]"));
}

TEST(CheckOp, ReportsInferenceErrors) {
  const RegisteredOp op(
      "check.op", "a b -> a b", 1,
      [](const shoal_op_node*, shoal_op_tensor*, char* error, size_t) -> int32_t {
        std::copy_n("a cube", 7, error);
        return 1;
      },
      map<square>);
  EXPECT_THAT(to_string(check_op("check.op", kOne)),
              HasSubstr("op 'check.op', inference: line 2: [external y] expected a cube (op 'check.op')"));
}

TEST(CheckOp, ReportsKernelsThatDivideWorkWrongly) {
  const auto problem = [](void (*run)(const shoal_op_node*, const shoal_op_launch*)) {
    const RegisteredOp op("check.op", "a b -> a b", 1, infer_like_first, run);
    return to_string(check_op("check.op", kOne));
  };
  EXPECT_THAT(problem([](const shoal_op_node* node, const shoal_op_launch*) {
                for (int64_t i = 0; i < count(*node->result); ++i) floats(*node->result)[i] = 1;
              }),
              HasSubstr("CPU kernel: with 2 parts, 2 parts write element [0, 0]"));
  EXPECT_THAT(problem([](const shoal_op_node* node, const shoal_op_launch* launch) {
                const auto [begin, end] = share(*launch, count(*node->result) - 1);
                for (int64_t i = begin; i < end; ++i) floats(*node->result)[i] = 1;
              }),
              HasSubstr("with 1 parts, 0 parts write element [5, 3]"));
  EXPECT_THAT(problem([](const shoal_op_node* node, const shoal_op_launch* launch) {
                const auto [begin, end] = share(*launch, count(*node->result));
                for (int64_t i = begin; i < end; ++i) floats(*node->result)[i] = static_cast<float>(launch->parts);
              }),
              HasSubstr("element [0, 0] is 2 with 2 parts and 1 with one part"));
  EXPECT_THAT(problem([](const shoal_op_node* node, const shoal_op_launch*) {
                floats(*node->result)[count(*node->result)] = 1;
              }),
              HasSubstr("the CPU kernel writes outside the result"));
  EXPECT_THAT(problem([](const shoal_op_node* node, const shoal_op_launch*) { floats(node->sources[0])[0] += 1; }),
              HasSubstr("the CPU kernel changes source 0"));
}

TEST(CheckOp, ReportsMissingKernels) {
  test::OpOfTest one("check.gpu", nullptr, 1, infer_like_first, map<square>);
  one.kernel.family = "CUDA";
  register_op(one.op);
  const OpReport report = check_op("check.gpu", {{"input %x f32 [6]\n%y = external(%x) {op=\"check.gpu\"}"}});
  EXPECT_THAT(to_string(report), HasSubstr("op 'check.gpu' has no kernel for CPU, only for: CUDA; register a kernel"));
  unregister_op("check.gpu");
}

TEST(CheckOp, TakesGraphsAndValuesFromFunctions) {
  // Selects row i of x. Only the given values are valid.
  const RegisteredOp op(
      "check.op", "x (r), (i) -> x", 2,
      [](const shoal_op_node* node, shoal_op_tensor* result, char*, size_t) -> int32_t {
        *result = {SHOAL_OP_F32, {node->sources[0].shape[0], 1, 1, 1}, {}, nullptr};
        return 0;
      },
      [](const shoal_op_node* node, const shoal_op_launch* launch) {
        const int32_t row = *static_cast<const int32_t*>(node->sources[1].data);
        const auto [begin, end] = share(*launch, count(*node->result));
        const float* x = floats(node->sources[0]) + row * node->sources[0].shape[0];
        for (int64_t i = begin; i < end; ++i) floats(*node->result)[i] = x[i];
      });
  OpCase example;
  example.build = [](Graph& graph, TensorContext& weights) {
    external(graph, "check.op",
             {weights.add("x", DType::kF32, {5, 9, 1, 1}), graph.input("i", DType::kI32, {1, 1, 1, 1})});
  };
  example.values = {{"i", {8}}};
  const OpReport report = check_op("check.op", {example});
  EXPECT_TRUE(report.is_correct()) << to_string(report);
}

TEST(CheckOp, RejectsExamplesOfOtherOps) {
  test::register_test_ops();
  EXPECT_THAT([] { check_op("test.none", kOne); },
              ThrowsMessage<InvalidArgument>(HasSubstr("there is no external op")));
  EXPECT_THAT([] { check_op("test.lerp", {}); }, ThrowsMessage<InvalidArgument>(HasSubstr("at least one example")));
  EXPECT_THAT([] { check_op("test.lerp", {{"input %x f32 [6]\n%y = cumsum(%x)"}}); },
              ThrowsMessage<InvalidArgument>(HasSubstr("expected an example with one node, of op 'test.lerp'")));
}

}  // namespace
}  // namespace shoal
