// The kernel for experts of one token and for short rows (devices/cuda/ops/mul_mat_stream_experts.h) against float64:
// rows that share a step, experts elsewhere, and results summed by weights.
#include <gmock/gmock.h>

#include "devices/cuda/ops/mul_mat_fused.h"
#include "devices/cuda/ops/select.h"
#include "graph/ops/ops.h"
#include "tests/cuda/op_runner.h"
#include "tests/support/dtypes.h"

namespace shoal::test {
namespace {

struct Experts {
  int64_t k, m, experts, slots, x_slots;
  std::vector<IndexRange> ranges = {};
};

class ExpertStream : public ::testing::TestWithParam<DType> {
 protected:
  static DType dtype() { return GetParam(); }
  static Tolerance tolerance() { return {traits(dtype()).is_quantized ? 1e-4 : dtype() == DType::kF32 ? 1e-11 : 1e-6}; }
  static Tensor* product(Graph& g, TensorContext& w, const Experts& one) {
    Tensor* x = g.input("x", DType::kF32, {one.k, one.x_slots, 1, 1});
    Tensor* ids = g.input("ids", DType::kI32, {one.slots, 1, 1, 1});
    return mul_mat_id(g, w.add("experts", dtype(), {one.k, one.m, one.experts, 1}), x, ids, {one.ranges});
  }
  static void check(const Experts& one) {
    const auto build = [&](Graph& g, TensorContext& w) { return product(g, w, one); };
    check_case({Op::kMulMatId, fmt::format("{} x {}", one.k, one.m), build, tolerance()}, 5);
  }
  /// The sum of its slots by weights, in one launch.
  static void check_sum(const Experts& one) {
    Graph graph;
    TensorContext weights;
    Tensor* each = product(graph, weights, one);
    Tensor* by = graph.input("by", DType::kF32, {1, one.slots, 1, 1});
    Tensor* columns = contiguous(graph, permute(graph, mul(graph, each, by), {1, 0, 2, 3}));
    Tensor* sum = graph.output(sum_rows(graph, columns));
    SCOPED_TRACE(to_string(graph));
    TensorValues leaves = random_leaves(graph, 7);
    CudaRun cuda(graph, leaves);
    cuda.give_workspace(*each);
    ASSERT_TRUE(cuda::mul_mat_id_sum_supports(*each, *by, *sum, cuda.context.gpu));
    cuda::mul_mat_id_sum_run(cuda.context, *each, *by, *sum);
    check_cuda(cudaStreamSynchronize(cuda.context.stream));
    EXPECT_TRUE(close_to(cuda.values(*sum), reference_eval(graph, leaves).at(sum), tolerance()));
  }
};

/// Whole and partial groups, a last block that begins earlier, fewer rows than a group.
TEST_P(ExpertStream, ShortRowsOfOneMatrix) {
  for (const int64_t k : {256, 512, 768, 1024, 1280, 1536, 1792, 2048}) {
    for (const int64_t m : {7, 61}) {
      const auto build = [&](Graph& g, TensorContext& w) {
        return mul_mat(g, w.add("a", dtype(), {k, m, 1, 1}), g.input("b", DType::kF32, {k, 1, 1, 1}));
      };
      check_case({Op::kMulMat, fmt::format("{} x {}", k, m), build, tolerance()}, 5);
    }
  }
}

/// As of 30B-A3B, Qwen3.5, Mixtral and DeepSeek, with fewer rows; all of a column, and a column for each slot.
TEST_P(ExpertStream, ExpertsOfOneToken) {
  for (const Experts& one : {Experts{2048, 13, 12, 8, 1},
                             {768, 37, 12, 8, 8},
                             {512, 29, 20, 10, 10},
                             {4096, 11, 3, 2, 1},
                             {2816, 9, 3, 2, 2},
                             {256, 5, 40, 32, 32}}) {
    check(one);
    check_sum(one);
  }
}

/// Ranges that the kernel looks at, and more of them than it can.
TEST_P(ExpertStream, ExpertsElsewhere) {
  const std::vector<IndexRange> none{{1 << 20, 4}}, some{{1, 2}, {9, 1}, {6, 1}};
  std::vector<IndexRange> many;
  for (int64_t i = 0; i <= cuda::Selection::kMost; ++i) many.push_back({2 * i, 1});
  for (const int64_t x_slots : {1, 6}) {
    check({512, 21, 4, 6, x_slots, none});
    check_sum({512, 21, 4, 6, x_slots, none});
    for (const auto& ranges : {some, many}) {
      const auto here = ranges.size() == 3 ? int64_t{4} : static_cast<int64_t>(ranges.size());
      check({512, 21, here, 6, x_slots, ranges});
      check_sum({512, 21, here, 6, x_slots, ranges});
    }
  }
}

INSTANTIATE_TEST_SUITE_P(Types, ExpertStream,
                         testing::Values(DType::kQ4_K, DType::kQ6_K, DType::kQ5_K, DType::kQ8_0, DType::kQ4_0,
                                         DType::kMXFP4, DType::kIQ2_XS, DType::kF16, DType::kF32),
                         [](const auto& info) { return std::string(name_of(info.param)); });

}  // namespace
}  // namespace shoal::test
