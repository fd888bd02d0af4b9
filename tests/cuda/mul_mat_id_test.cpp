// Tests of mul_mat_id beyond the conformance cases. If there are many pairs of a token and an expert, the products run
// as tiles on tensor cores. Other tests cover gated experts, and the kernel for experts of one token and for short rows
// (devices/cuda/ops/mul_mat_stream_experts.h). In some cases, the kernel reads several rows per step. In other cases,
// some experts belong to other devices, or the kernel computes a weighted sum of the results.
#include "devices/cuda/ops/select.h"
#include "tests/cuda/products.h"

namespace shoal::test {
namespace {

/// Ranges of the expert ids that belong to this device, and the number of experts in these ranges. Other ids are
/// experts of other devices.
struct Elsewhere {
  SelectParams params;
  int64_t experts;
};
const Elsewhere kSome{{{{5, 2}, {1, 2}}}, 4}, kOne{{{{3, 1}}}, 1};

TEST(MulMatIdTiles, HandlesPartialTilesAndExpertsOfOtherDevices) {
  for (const DType dtype : {DType::kQ4_K, DType::kQ6_K, DType::kQ8_0, DType::kMXFP4, DType::kF16, DType::kBF16}) {
    check_experts(dtype, {256, 131, 2, 2, 1, 150}, {bound(dtype)});
    check_experts(dtype, {256, 40, 3, 2, 2, 35}, {bound(dtype)});
  }
  check_experts(DType::kQ5_0, {416, 70, 2, 4, 4, 40}, {bound(DType::kQ5_0)});
  check_experts(DType::kF16, {344, 70, 2, 4, 1, 40}, {bound(DType::kF16)});
  check_experts(DType::kQ8_0, {256, 131, kSome.experts, 2, 1, 150}, {bound(DType::kQ8_0)}, kSome.params);
  check_experts(DType::kQ4_K, {256, 70, kOne.experts, 2, 2, 90}, {bound(DType::kQ4_K)}, kOne.params);
}

/// Computes act(gate) * up in one launch, for many or few pairs of a token and an expert. Checks all elements,
/// including results of experts of other devices.
void check_gated(DType dtype, const Experts& one, GluKind kind, const cuda::GpuTraits& gpu,
                 const SelectParams& params = {}) {
  const auto build = [&](Graph& g, TensorContext& w) {
    Tensor* gate = expert_product(g, w, dtype, one, params);
    Tensor* matrices = w.add("up", dtype, {one.k, one.m, one.experts, 1});
    return glu(g, gate, mul_mat_id(g, matrices, gate->src[1], gate->src[2], params), kind);
  };
  check_launch(build, {1e-4}, gpu, [&](CudaRun& run, Tensor& out) {
    Tensor &gate = *out.src[0], &up = *out.src[1];
    ASSERT_TRUE(cuda::mul_mat_id_glu_supports(gate, up, out));
    run.give_workspace(gate);
    cuda::mul_mat_id_glu_run(run.context, gate, up, kind, out);
  });
}

TEST(GatedExperts, MatchReferenceForAnyNumberOfTokens) {
  for (const int64_t tokens : {1, 2, 35, 150}) {
    for (const cuda::GpuTraits& gpu : {hopper(1), ampere(1)}) {
      for (const DType dtype : {DType::kQ4_K, DType::kQ8_0, DType::kMXFP4, DType::kF16, DType::kBF16, DType::kF32}) {
        check_gated(dtype, {256, 70, 3, 2, 1, tokens}, GluKind::kSwiglu, gpu);
      }
      check_gated(DType::kQ6_K, {256, 131, kSome.experts, 2, 2, tokens}, GluKind::kGeglu, gpu, kSome.params);
      check_gated(DType::kQ5_0, {416, 40, kOne.experts, 2, 2, tokens}, GluKind::kReglu, gpu, kOne.params);
    }
  }
}

class ExpertStream : public ::testing::TestWithParam<DType> {
 protected:
  static DType dtype() { return GetParam(); }
  /// Checks the products of one token, and then the weighted sum of these products in one launch.
  static void check(const Experts& one, const SelectParams& params = {}) {
    check_experts(dtype(), one, rough(dtype()), params);
    const auto build = [&](Graph& g, TensorContext& w) {
      Tensor* by = g.input("by", DType::kF32, {1, one.slots, 1, 1});
      Tensor* weighted = mul(g, expert_product(g, w, dtype(), one, params), by);
      return sum_rows(g, contiguous(g, permute(g, weighted, {1, 0, 2, 3})));
    };
    check_launch(build, rough(dtype()), current_gpu(), [](CudaRun& run, Tensor& sum) {
      const Tensor& weighted = *sum.src[0]->src[0]->src[0];
      Tensor &each = *weighted.src[0], &by = *weighted.src[1];
      run.give_workspace(each);
      ASSERT_TRUE(cuda::mul_mat_id_sum_supports(each, by, sum, run.context.gpu));
      cuda::mul_mat_id_sum_run(run.context, each, by, sum);
    });
  }
};

/// The matrices have whole or partial groups of rows. In some matrices, the last thread block also computes rows of the
/// previous thread block. Other matrices have fewer rows than a group.
TEST_P(ExpertStream, MultipliesShortRowsOfOneMatrix) {
  for (const int64_t k : {256, 512, 768, 1024, 1280, 1536, 1792, 2048}) {
    for (const int64_t m : {7, 61}) {
      check_case({Op::kMulMat, "short", product(dtype(), {k, m, 1, 1}, {k, 1, 1, 1}), rough(dtype())}, 5);
    }
  }
}

/// Shapes of 30B-A3B, Qwen3.5, Mixtral and DeepSeek, but with fewer rows. All selected experts of the token read one
/// column, or each selected expert reads its own column.
TEST_P(ExpertStream, MultipliesExpertsOfOneToken) {
  for (const Experts& one : {Experts{2048, 13, 12, 8, 1},
                             {768, 37, 12, 8, 8},
                             {512, 29, 20, 10, 10},
                             {4096, 11, 3, 2, 1},
                             {2816, 9, 3, 2, 2},
                             {256, 5, 40, 32, 32}}) {
    check(one);
  }
}

/// A case has few ranges of expert ids, or one range more than the kernel can check.
TEST_P(ExpertStream, ExpertsOfOtherDevicesGiveZeros) {
  Elsewhere many{{}, cuda::Selection::kMost + 1};
  for (int64_t i = 0; i < many.experts; ++i) many.params.ranges.push_back({2 * i, 1});
  const Elsewhere all[] = {{{{{1 << 20, 4}}}, 4}, {{{{1, 2}, {9, 1}, {6, 1}}}, 4}, many};
  for (const auto& [params, experts] : all) {
    for (const int64_t x_slots : {1, 6}) check({512, 21, experts, 6, x_slots}, params);
  }
}

INSTANTIATE_TEST_SUITE_P(Types, ExpertStream,
                         testing::Values(DType::kQ4_K, DType::kQ6_K, DType::kQ5_K, DType::kQ8_0, DType::kQ4_0,
                                         DType::kMXFP4, DType::kIQ2_XS, DType::kF16, DType::kF32),
                         [](const auto& info) { return std::string(name_of(info.param)); });

}  // namespace
}  // namespace shoal::test
