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

}  // namespace
}  // namespace shoal::test
