// Products of tiles by warpgroups (compute capability 9.0), as mul_mat_tiles_test.cpp has them for others.
#include "tests/cuda/tile_run.h"

namespace shoal::test {
namespace {

/// The tiles must be those of warpgroups, this wide.
Trial check_wgmma(const Build& build, double nmse, const cuda::GpuTraits& gpu, int columns) {
  Graph graph;
  TensorContext weights;
  const cuda::TileChoice choice = cuda::mul_mat_tiles_choice(*graph.output(build(graph, weights)), gpu);
  EXPECT_TRUE(choice.warpgroups);
  EXPECT_EQ(choice.columns, columns);
  return check(build, nmse, gpu);
}

class MulMatWgmma : public ::testing::TestWithParam<DType> {
 protected:
  DType dtype() const { return GetParam(); }
  /// No whole steps or groups of blocks, where the format allows that; more steps than tiles of b have room.
  int64_t k() const {
    const int64_t block = traits(dtype()).block_elems;
    return block == 256 ? 768 : block == 1 ? 344 : block == 32 ? 416 : 5 * block;
  }
  double bound_of(DType b = DType::kF32) const { return bound(dtype(), b); }
  /// Of tiles where columns are many; two terms of bf16 have no wider ones.
  int wide() const { return dtype() == DType::kBF16 ? 128 : 256; }
  Build product(int64_t m, int64_t n, DType b = DType::kF32) const {
    return [=, this](Graph& g, TensorContext& w) {
      return mul_mat(g, w.add("a", dtype(), {k(), m, 1, 1}), g.input("b", b, {k(), n, 1, 1}));
    };
  }
};

TEST_P(MulMatWgmma, TilesThatAreNotFull) {
  check_wgmma(product(131, 101), bound_of(), hopper(1), 128);
  check_wgmma(product(61, 253), bound_of(), hopper(1), wide());
}

TEST_P(MulMatWgmma, OtherDTypesOfColumns) {
  check_wgmma(product(70, 100, DType::kF16), bound_of(DType::kF16), hopper(1), 128);
  check_wgmma(product(70, 255, DType::kBF16), bound_of(DType::kBF16), hopper(1), 256);
}

TEST_P(MulMatWgmma, RowsAtAnyAddressAndBatches) {
  check_wgmma(
      [&](Graph& g, TensorContext& w) {
        Tensor* a = slice(g, w.add("a", dtype(), {k(), 40, 2, 1}), {1, 3, 36});
        return mul_mat(g, a, slice(g, g.input("b", DType::kF32, {k(), 103, 4, 1}), {1, 1, 100}));
      },
      bound_of(), hopper(1), 128);
}

TEST_P(MulMatWgmma, PartsOfK) {
  const auto product = [&](Graph& g, TensorContext& w) {
    return mul_mat(g, w.add("a", dtype(), {2304, 70, 1, 1}), g.input("b", DType::kF32, {2304, 120, 1, 1}));
  };
  const Trial whole = check_wgmma(product, bound_of(), hopper(1), 128);
  const Trial parts = check_wgmma(product, bound_of(), hopper(4), 128);
  EXPECT_GE(parts.workspace_bytes, whole.workspace_bytes + 2 * whole.values.size() * sizeof(float));
}

INSTANTIATE_TEST_SUITE_P(All, MulMatWgmma, ::testing::ValuesIn([] {
                           std::vector<DType> types = weight_types();
                           std::erase(types, DType::kF32);
                           return types;
                         }()),
                         [](const auto& info) { return std::string(name_of(info.param)); });

TEST(MulMatWgmmaEdges, OneStep) {
  check_wgmma(
      [&](Graph& g, TensorContext& w) {
        return mul_mat(g, w.add("a", DType::kQ8_0, {32, 70, 1, 1}), g.input("b", DType::kF32, {32, 120, 1, 1}));
      },
      2e-7, hopper(1), 128);
}

}  // namespace
}  // namespace shoal::test
