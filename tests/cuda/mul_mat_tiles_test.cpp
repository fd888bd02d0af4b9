// Tests of tile products (mul_mat with many columns). The tests compare results with float64 results. The cases cover
// all dtypes, partial tiles, split k, batches that share a matrix, rows at any address, and activations of any
// magnitude. The products use warp or warpgroup instructions. If the arithmetic of a kernel is precise enough, the
// tests use a far tighter error bound than the conformance suite.
#include "devices/cuda/ops/mul_mat_tiles.h"
#include "tests/cuda/products.h"

namespace shoal::test {
namespace {

/// Runs a tile product with a workspace of exactly the requested size.
void run_tiles(CudaRun& run, Tensor& node) {
  EXPECT_TRUE(cuda::mul_mat_tiles_supports(node));
  run.give_workspace(node, cuda::mul_mat_tiles_workspace(node, run.context.gpu));
  cuda::mul_mat_tiles_run(run.context, node);
}
void check(const Build& build, double nmse, const cuda::GpuTraits& gpu = hopper()) {
  check_launch(build, {nmse}, gpu, run_tiles);
}
/// Checks a product. Also requires warpgroup tiles with `columns` columns.
void check_wgmma(const Build& build, double nmse, int columns, const cuda::GpuTraits& gpu = hopper(1)) {
  check_launch(build, {nmse}, gpu, [&](CudaRun& run, Tensor& node) {
    const cuda::TileChoice choice = cuda::mul_mat_tiles_choice(node, gpu);
    EXPECT_TRUE(choice.warpgroups);
    EXPECT_EQ(choice.columns, columns);
    run_tiles(run, node);
  });
}

class Tiles : public ::testing::TestWithParam<DType> {
 protected:
  DType dtype() const { return GetParam(); }
  double bound_of(DType b = DType::kF32) const { return bound(dtype(), b); }
  /// Depth of the products, in elements. The depth is an odd number of blocks. With blocks of 32 elements, the last
  /// step and the last group of blocks are partial.
  int64_t k() const {
    const int64_t block = traits(dtype()).block_elems;
    return block == 256 ? 768 : block == 1 ? 344 : block == 32 ? 416 : 5 * block;
  }
  Build columns(int64_t m, int64_t n, DType b = DType::kF32) const {
    return product(dtype(), {k(), m, 1, 1}, {k(), n, 1, 1}, b);
  }
  /// In most formats, the length of a row of 416 elements is not a multiple of 16 bytes. Therefore, blocks begin at
  /// every even address.
  Build at_any_address(int64_t n, int64_t batches) const {
    return [=, this](Graph& g, TensorContext& w) {
      Tensor* a = slice(g, w.add("a", dtype(), {k(), 40, 2, 1}), {1, 3, 36});
      return mul_mat(g, a, slice(g, g.input("b", DType::kF32, {k(), n + 3, batches, 1}), {1, 1, n}));
    };
  }
  /// Checks that the workspace has room for several partial results, because the product is split along k.
  void expect_parts(const Shape& b, const cuda::GpuTraits& gpu) const {
    Graph graph;
    TensorContext weights;
    const Tensor* node = graph.output(product(dtype(), {2304, 70, 1, 1}, b)(graph, weights));
    EXPECT_GE(cuda::mul_mat_tiles_workspace(*node, gpu),
              cuda::mul_mat_tiles_workspace(*node, hopper(1)) + 2 * node->bytes());
  }
};
class MulMatTiles : public Tiles {};
class MulMatWgmma : public Tiles {};

TEST_P(MulMatTiles, HandlesPartialTiles) {
  for (const int64_t n : {9, 17, 64, 130}) check(columns(n == 130 ? 65 : 131, n), bound_of(), ampere());
  // On one multiprocessor, the kernel does not split k. For 125 columns, the kernel does not use narrow tiles.
  check(columns(129, 125), bound_of(), ampere(1));
  // With 99 KB of shared memory per block (compute capability 8.9), the kernel uses narrower tiles than on ampere(1).
  check(columns(40, 126), bound_of(), {0, 89, 1, 99 * 1024});
  check(product(dtype(), {0, 5, 1, 1}, {0, 9, 2, 1}), 0);
}

TEST_P(MulMatTiles, HandlesF16AndBF16ColumnsAndSharedMatrices) {
  for (const DType b : {DType::kF16, DType::kBF16}) check(columns(37, 33, b), bound_of(b));
  check(product(dtype(), {k(), 21, 2, 3}, {k(), 11, 4, 3}), bound_of());
}

TEST_P(MulMatTiles, SplitKIsDeterministic) {
  const Shape b{2304, 12, 2, 1};
  const Build build = product(dtype(), {2304, 70, 1, 1}, b);
  check(build, bound_of(), hopper(1));
  if (dtype() != DType::kF32) expect_parts(b, hopper());
  Values first;
  for (int i = 0; i < 2; ++i) {
    check_launch(build, {bound_of()}, hopper(), [&](CudaRun& run, Tensor& node) {
      run_tiles(run, node);
      run.wait();
      if (i == 0) first = run.values(node);
      EXPECT_EQ(run.values(node), first) << "results differ between runs";
    });
  }
}

TEST_P(MulMatTiles, HandlesUnalignedRowsAndColumnsWithGaps) {
  check(at_any_address(21, 2), bound_of());
  for (const DType b : {DType::kF32, DType::kF16}) {
    const auto build = [&](Graph& g, TensorContext& w) {
      Tensor* columns = transpose(g, slice(g, g.input("b", b, {22, k(), 1, 1}), {0, 1, 20}));
      return mul_mat(g, w.add("a", dtype(), {k(), 30, 1, 1}), columns);
    };
    check(build, bound_of(b));
  }
}

TEST_P(MulMatTiles, HandlesActivationsOfAnyMagnitude) {
  // The magnitudes of the columns reach from far below to far above the range of halves.
  const double factors[] = {1e-30, 1e-12, 3e-5, 1, 7e4, 1e9, 1e25};
  Graph graph;
  TensorContext weights;
  Tensor* node = graph.output(columns(19, 14)(graph, weights));
  TensorValues leaves = random_leaves(graph, 12);
  Values& b = leaves[graph.find("b")];
  for (size_t i = 0; i < b.size(); ++i) {
    b[i] = static_cast<float>(b[i] * factors[i / static_cast<size_t>(k()) % std::size(factors)]);
  }
  CudaRun run(graph, leaves, hopper());
  run_tiles(run, *node);
  run.wait();
  const Values values = run.values(*node), expected = reference_eval(graph, leaves).at(node);
  for (std::ptrdiff_t i = 0; i < 14 * 19; i += 19) {
    const auto column = [&](const Values& all) { return Values(all.begin() + i, all.begin() + i + 19); };
    EXPECT_TRUE(close_to(column(values), column(expected), {3 * bound_of()})) << "column " << i / 19;
  }
}

TEST_P(MulMatTiles, NaNAndInfinityReachOnlyTheirColumn) {
  Graph graph;
  TensorContext weights;
  Tensor* node = graph.output(columns(19, 14)(graph, weights));
  TensorValues leaves = random_leaves(graph, 13);
  for (const int processors : {1, 132}) {
    check_odd_columns(graph, leaves, 19, [&](TensorValues& values) {
      CudaRun run(graph, values, hopper(processors));
      run_tiles(run, *node);
      run.wait();
      return run.values(*node);
    });
  }
}

TEST_P(MulMatWgmma, HandlesPartialTiles) {
  check_wgmma(columns(131, 101), bound_of(), 128);
  // With bf16 weights, an f32 column becomes two bf16 terms, and tiles are at most 128 columns wide.
  check_wgmma(columns(61, 253), bound_of(), dtype() == DType::kBF16 ? 128 : 256);
  check_wgmma(columns(70, 100, DType::kF16), bound_of(DType::kF16), 128);
  check_wgmma(columns(70, 255, DType::kBF16), bound_of(DType::kBF16), 256);
}

TEST_P(MulMatWgmma, HandlesUnalignedRowsAndBatches) {
  check_wgmma(at_any_address(100, 4), bound_of(), 128);
}

TEST_P(MulMatWgmma, HandlesSplitK) {
  const Shape b{2304, 120, 1, 1};
  for (const int processors : {1, 4}) {
    check_wgmma(product(dtype(), {2304, 70, 1, 1}, b), bound_of(), 128, hopper(processors));
  }
  expect_parts(b, hopper(4));
}

std::vector<DType> types_of_tensor_cores() {
  std::vector<DType> types = weight_types();
  std::erase(types, DType::kF32);
  return types;
}
std::string name(const ::testing::TestParamInfo<DType>& info) {
  return std::string(name_of(info.param));
}
INSTANTIATE_TEST_SUITE_P(All, MulMatTiles, ::testing::ValuesIn(weight_types()), name);
INSTANTIATE_TEST_SUITE_P(All, MulMatWgmma, ::testing::ValuesIn(types_of_tensor_cores()), name);

TEST(MulMatWgmmaEdges, HandlesASingleStepOfK) {
  check_wgmma(product(DType::kQ8_0, {32, 70, 1, 1}, {32, 120, 1, 1}), 2e-7, 128);
}

TEST(MulMatTilesViews, HandlesTransposedUnalignedAndPermutedRows) {
  for (const DType a : {DType::kF32, DType::kF16, DType::kBF16}) {
    const auto transposed = [&](Graph& g, TensorContext&) {
      return mul_mat(g, transpose(g, g.input("a", a, {70, 150, 2, 1})), g.input("b", DType::kF32, {150, 67, 2, 1}));
    };
    check(transposed, 1e-11);
    const auto unaligned = [&](Graph& g, TensorContext&) {
      Tensor* rows = slice(g, g.input("a", a, {104, 20, 1, 1}), {0, 3, 96});
      return mul_mat(g, rows, g.input("b", DType::kBF16, {96, 10, 1, 1}));
    };
    check(unaligned, 1e-11);
    const auto permuted = [&](Graph& g, TensorContext&) {
      Tensor* rows = permute(g, g.input("a", a, {64, 4, 10, 1}), {0, 2, 1, 3});
      return mul_mat(g, rows, permute(g, g.input("b", DType::kF32, {64, 8, 12, 1}), {0, 2, 1, 3}));
    };
    check(permuted, bound(a));
  }
}

TEST(MulMatTilesViews, DoesNotReadAComputedMatrixEarly) {
  for (const DType a : {DType::kF16, DType::kBF16, DType::kF32}) {
    const auto build = [&](Graph& g, TensorContext&) {
      Tensor* matrix = cast(g, g.input("a", DType::kF32, {64, 20, 1, 1}), a);
      return mul_mat(g, matrix, g.input("b", DType::kF32, {64, 12, 1, 1}));
    };
    check_case({Op::kMulMat, std::string(name_of(a)), build, {1e-5}}, 3);
  }
}

}  // namespace
}  // namespace shoal::test
