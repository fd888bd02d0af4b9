// Products of tiles (mul_mat with many columns) against float64: every dtype, tiles that are not full, parts of k,
// batches that share a matrix, rows at any address, activations of any size. Bounds are far below those of the
// conformance suite where a kernel's arithmetic promises it.
#include <gtest/gtest.h>

#include <cmath>
#include <utility>

#include "tests/cuda/tile_run.h"

namespace shoal::test {
namespace {

class MulMatTiles : public ::testing::TestWithParam<DType> {
 protected:
  DType dtype() const { return GetParam(); }
  /// An odd number of blocks that fills no step and no group of blocks, of 32-element formats.
  int64_t k() const {
    const int64_t block = traits(dtype()).block_elems;
    return block == 256 ? 768 : block == 1 ? 344 : block == 32 ? 416 : 5 * block;
  }
};

TEST_P(MulMatTiles, TilesThatAreNotFull) {
  for (const int64_t n : {9, 17, 64, 130}) {
    const int64_t m = n == 130 ? 65 : 131;
    check(
        [&](Graph& g, TensorContext& w) {
          return mul_mat(g, w.add("a", dtype(), {k(), m, 1, 1}), g.input("b", DType::kF32, {k(), n, 1, 1}));
        },
        bound(dtype(), DType::kF32), ampere());
  }
}

TEST_P(MulMatTiles, WideTiles) {
  // Too few multiprocessors for parts of k to pay, and too many columns for narrow tiles.
  check(
      [&](Graph& g, TensorContext& w) {
        return mul_mat(g, w.add("a", dtype(), {k(), 129, 1, 1}), g.input("b", DType::kF32, {k(), 125, 1, 1}));
      },
      bound(dtype(), DType::kF32), ampere(1));
}

TEST_P(MulMatTiles, OtherDTypesOfColumns) {
  for (const DType b : {DType::kF16, DType::kBF16}) {
    check(
        [&](Graph& g, TensorContext& w) {
          return mul_mat(g, w.add("a", dtype(), {k(), 37, 1, 1}), g.input("b", b, {k(), 33, 1, 1}));
        },
        bound(dtype(), b));
  }
}

TEST_P(MulMatTiles, BatchesThatShareMatrices) {
  check(
      [&](Graph& g, TensorContext& w) {
        return mul_mat(g, w.add("a", dtype(), {k(), 21, 2, 3}), g.input("b", DType::kF32, {k(), 11, 4, 3}));
      },
      bound(dtype(), DType::kF32));
}

TEST_P(MulMatTiles, PartsOfK) {
  const auto product = [&](Graph& g, TensorContext& w) {
    return mul_mat(g, w.add("a", dtype(), {2304, 70, 1, 1}), g.input("b", DType::kF32, {2304, 12, 2, 1}));
  };
  const Trial whole = check(product, bound(dtype(), DType::kF32), hopper(1));
  const Trial parts = check(product, bound(dtype(), DType::kF32), hopper(132));
  if (dtype() != DType::kF32) {
    EXPECT_GE(parts.workspace_bytes, whole.workspace_bytes + 2 * whole.values.size() * sizeof(float));
  }
  EXPECT_EQ(parts.values, check(product, 1, hopper(132)).values) << "not deterministic";
}

TEST_P(MulMatTiles, RowsAtAnyAddress) {
  // Rows of 416 elements are no multiple of 16 bytes in most formats; blocks begin at every even address.
  check(
      [&](Graph& g, TensorContext& w) {
        Tensor* a = slice(g, w.add("a", dtype(), {k(), 40, 2, 1}), {1, 3, 36});
        return mul_mat(g, a, slice(g, g.input("b", DType::kF32, {k(), 23, 2, 1}), {1, 1, 21}));
      },
      bound(dtype(), DType::kF32));
}

TEST_P(MulMatTiles, ColumnsWithGaps) {
  for (const DType b : {DType::kF32, DType::kF16}) {
    check(
        [&](Graph& g, TensorContext& w) {
          Tensor* columns = transpose(g, slice(g, g.input("b", b, {22, k(), 1, 1}), {0, 1, 20}));
          return mul_mat(g, w.add("a", dtype(), {k(), 30, 1, 1}), columns);
        },
        bound(dtype(), b));
  }
}

TEST_P(MulMatTiles, ActivationsOfAnySize) {
  // Each column has its own magnitude, from far below what halves hold to far above.
  const double factors[] = {1e-30, 1e-12, 3e-5, 1, 7e4, 1e9, 1e25};
  const auto scaled = [&](const Graph& graph, TensorValues& leaves) {
    for (auto& [leaf, values] : leaves) {
      if (leaf->name != "b") continue;
      for (size_t i = 0; i < values.size(); ++i) {
        values[i] = static_cast<float>(values[i] * factors[i / static_cast<size_t>(k()) % std::size(factors)]);
      }
    }
    static_cast<void>(graph);
  };
  Graph graph;
  TensorContext weights;
  Tensor* node = graph.output(
      mul_mat(graph, weights.add("a", dtype(), {k(), 19, 1, 1}), graph.input("b", DType::kF32, {k(), 14, 1, 1})));
  TensorValues leaves = random_leaves(graph, 12);
  scaled(graph, leaves);
  const Values values = TileRun(graph, *node, leaves, hopper()).values();
  const Values expected = reference_eval(graph, leaves).at(node);
  for (size_t column = 0; column < 14; ++column) {
    SCOPED_TRACE(factors[column % std::size(factors)]);
    const auto begin = static_cast<std::ptrdiff_t>(column * 19);
    EXPECT_TRUE(close_to(Values(values.begin() + begin, values.begin() + begin + 19),
                         Values(expected.begin() + begin, expected.begin() + begin + 19),
                         {3 * bound(dtype(), DType::kF32)}));
  }
}

TEST_P(MulMatTiles, NaNAndInfinitiesReachTheirColumnAlone) {
  constexpr int64_t kRows = 19, kColumns = 14, kOddColumn = 9;
  Graph graph;
  TensorContext weights;
  Tensor* b = graph.input("b", DType::kF32, {k(), kColumns, 1, 1});
  Tensor* node = graph.output(mul_mat(graph, weights.add("a", dtype(), {k(), kRows, 1, 1}), b));
  TensorValues leaves = random_leaves(graph, 13);
  for (const int processors : {1, 132}) {
    const Values clean = TileRun(graph, *node, leaves, hopper(processors)).values();
    for (const double odd : {std::nan(""), -std::nan(""), HUGE_VAL, -HUGE_VAL}) {
      for (const int64_t at : {int64_t{0}, int64_t{77}, k() - 1}) {
        double& element = leaves[b][static_cast<size_t>(kOddColumn * k() + at)];
        const double before = std::exchange(element, odd);
        const Values values = TileRun(graph, *node, leaves, hopper(processors)).values();
        element = before;
        for (size_t i = 0; i < values.size(); ++i) {
          const bool own = i / kRows == kOddColumn;
          EXPECT_TRUE(own ? !std::isfinite(values[i]) : values[i] == clean[i])
              << odd << " at " << at << ": result " << i << " is " << values[i];
        }
      }
    }
  }
}

TEST_P(MulMatTiles, NothingToSum) {
  check(
      [&](Graph& g, TensorContext& w) {
        return mul_mat(g, w.add("a", dtype(), {0, 5, 1, 1}), g.input("b", DType::kF32, {0, 9, 2, 1}));
      },
      0);
}

TEST_P(MulMatTiles, LittleSharedMemory) {
  // 99 KB a block, as compute capability 8.9 has: narrower tiles.
  check(
      [&](Graph& g, TensorContext& w) {
        return mul_mat(g, w.add("a", dtype(), {k(), 40, 1, 1}), g.input("b", DType::kF32, {k(), 126, 1, 1}));
      },
      bound(dtype(), DType::kF32), {0, 89, 1, 99 * 1024});
}

INSTANTIATE_TEST_SUITE_P(All, MulMatTiles, ::testing::ValuesIn(weight_types()),
                         [](const auto& info) { return std::string(name_of(info.param)); });

TEST(MulMatTilesViews, TransposedAndUnalignedRows) {
  for (const DType a : {DType::kF32, DType::kF16, DType::kBF16}) {
    check(
        [&](Graph& g, TensorContext&) {
          return mul_mat(g, transpose(g, g.input("a", a, {70, 150, 2, 1})), g.input("b", DType::kF32, {150, 67, 2, 1}));
        },
        1e-11);
    check(
        [&](Graph& g, TensorContext&) {
          Tensor* rows = slice(g, g.input("a", a, {104, 20, 1, 1}), {0, 3, 96});
          return mul_mat(g, rows, g.input("b", DType::kBF16, {96, 10, 1, 1}));
        },
        1e-11);
  }
}

TEST(MulMatTilesViews, MatrixOfQueuedWorkIsNotReadEarly) {
  for (const DType a : {DType::kF16, DType::kBF16, DType::kF32}) {
    const auto build = [&](Graph& g, TensorContext&) {
      Tensor* matrix = cast(g, g.input("a", DType::kF32, {64, 20, 1, 1}), a);
      return mul_mat(g, matrix, g.input("b", DType::kF32, {64, 12, 1, 1}));
    };
    check_case({Op::kMulMat, std::string(name_of(a)), build, {1e-5}}, 3);
  }
}

TEST(MulMatTilesViews, PermutedRows) {
  for (const DType a : {DType::kF16, DType::kBF16}) {
    check(
        [&](Graph& g, TensorContext&) {
          Tensor* rows = permute(g, g.input("a", a, {64, 4, 10, 1}), {0, 2, 1, 3});
          return mul_mat(g, rows, permute(g, g.input("b", DType::kF32, {64, 8, 12, 1}), {0, 2, 1, 3}));
        },
        bound(a, DType::kF32));
  }
}

}  // namespace
}  // namespace shoal::test
