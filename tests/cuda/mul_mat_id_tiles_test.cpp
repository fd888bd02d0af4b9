// mul_mat_id of many pairs by tiles on tensor cores. Fewer are in mul_mat_vec_test.cpp, all dtypes in the conformance
// cases.
#include "tests/cuda/tile_run.h"

namespace shoal::test {
namespace {

struct Experts {
  int64_t k, m, experts, slots, x_slots, tokens;
};

void check_experts(DType dtype, const Experts& one, const SelectParams& params = {}) {
  const auto build = [&](Graph& g, TensorContext& w) {
    Tensor* x = g.input("x", DType::kF32, {one.k, one.x_slots, one.tokens, 1});
    Tensor* ids = g.input("ids", DType::kI32, {one.slots, one.tokens, 1, 1});
    return mul_mat_id(g, w.add("experts", dtype, {one.k, one.m, one.experts, 1}), x, ids, params);
  };
  check_case({Op::kMulMatId, std::string(name_of(dtype)), build, {bound(dtype, DType::kF32)}}, 3);
}

TEST(MulMatIdTiles, GroupsThatFillTilesAndDoNot) {
  for (const DType dtype : {DType::kQ4_K, DType::kQ6_K, DType::kQ8_0, DType::kMXFP4, DType::kF16, DType::kBF16}) {
    check_experts(dtype, {256, 131, 2, 2, 1, 150});
    check_experts(dtype, {256, 40, 3, 2, 2, 35});
  }
}
TEST(MulMatIdTiles, RowsThatFillNoStep) {
  check_experts(DType::kQ5_0, {416, 70, 2, 4, 4, 40});
  check_experts(DType::kF16, {344, 70, 2, 4, 1, 40});
}
TEST(MulMatIdTiles, ExpertsElsewhere) {
  check_experts(DType::kQ8_0, {256, 131, 4, 2, 1, 150}, {{{5, 2}, {1, 2}}});
  check_experts(DType::kQ4_K, {256, 70, 1, 2, 2, 90}, {{{3, 1}}});
}

/// act(gate) * up of one launch, by many pairs and by few, against float64: every element, those of experts elsewhere
/// too.
void check_gated(DType dtype, const Experts& one, GluKind kind, const cuda::GpuTraits& gpu,
                 const SelectParams& params = {}) {
  Graph graph;
  TensorContext weights;
  Tensor* x = graph.input("x", DType::kF32, {one.k, one.x_slots, one.tokens, 1});
  Tensor* ids = graph.input("ids", DType::kI32, {one.slots, one.tokens, 1, 1});
  const Shape shape{one.k, one.m, one.experts, 1};
  Tensor* gate = mul_mat_id(graph, weights.add("gate", dtype, shape), x, ids, params);
  Tensor* up = mul_mat_id(graph, weights.add("up", dtype, shape), x, ids, params);
  Tensor* out = graph.output(glu(graph, gate, up, kind));
  SCOPED_TRACE(to_string(graph));
  TensorValues leaves = random_leaves(graph, 11);
  CudaRun cuda(graph, leaves);
  ASSERT_TRUE(cuda::mul_mat_id_glu_supports(*gate, *up, *out));
  const CudaMemory workspace(cuda::kernel_for(Op::kMulMatId).workspace(*gate, {}));
  gate->workspace = workspace.get();
  const cuda::LaunchContext context{nullptr, gpu};
  cuda::mul_mat_id_glu_run(context, *gate, *up, kind, *out);
  check_cuda(cudaDeviceSynchronize());
  EXPECT_TRUE(close_to(cuda.values(*out), reference_eval(graph, leaves).at(out), {1e-4}));
}

TEST(GatedExperts, OfManyPairsAndFew) {
  for (const int64_t tokens : {1, 2, 35, 150}) {
    for (const cuda::GpuTraits& gpu : {hopper(1), ampere(1)}) {
      for (const DType dtype : {DType::kQ4_K, DType::kQ8_0, DType::kMXFP4, DType::kF16, DType::kBF16, DType::kF32}) {
        check_gated(dtype, {256, 70, 3, 2, 1, tokens}, GluKind::kSwiglu, gpu);
      }
      check_gated(DType::kQ6_K, {256, 131, 4, 2, 2, tokens}, GluKind::kGeglu, gpu, {{{5, 2}, {1, 2}}});
      check_gated(DType::kQ5_0, {416, 40, 1, 2, 2, tokens}, GluKind::kReglu, gpu, {{{3, 1}}});
    }
  }
}

}  // namespace
}  // namespace shoal::test
