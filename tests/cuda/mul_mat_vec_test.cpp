// Tests of the CUDA kernels for products of few columns and for products of experts. PluginConformance does not contain
// these cases. The cases cover all dtypes and numbers of columns, rows of odd lengths at odd addresses, batches that
// share matrices, sorted pairs of a token and an expert, and fused kernels.
#include <gmock/gmock.h>

#include <array>
#include <cstring>

#include "tests/cuda/products.h"
#include "tests/support/environment.h"

namespace shoal::test {
namespace {

const cuda::GpuTraits kGpu = hopper(4);

class MulMatVec : public ::testing::TestWithParam<DType> {
 protected:
  DType dtype() const { return GetParam(); }
  /// Rounds k up to whole blocks.
  int64_t whole(int64_t k) const { return (k + block() - 1) / block() * block(); }
  int64_t block() const { return traits(dtype()).block_elems; }
  void check(const std::string& name, const Build& build) const {
    check_case({Op::kMulMat, name, build, rough(dtype())}, 11);
  }
  void check_product(const Shape& a, const Shape& b) const {
    check(to_string(a) + " x " + to_string(b), product(dtype(), a, b));
  }
};

TEST_P(MulMatVec, HandlesAnyNumberOfColumns) {
  for (int64_t n = 1; n <= 9; ++n) check_product({whole(520), 21, 1, 1}, {whole(520), n, 1, 1});
}

/// Some rows end inside a unit. A unit is a range of elements that one lane multiplies at a time. Other rows take
/// several steps, and long rows fill the ring buffer several times.
TEST_P(MulMatVec, HandlesRowsOfAnyLength) {
  for (const int64_t k : {1, 31, 32, 64, 70, 96, 776, 2048, 2056, 4128, 12400}) {
    for (const int64_t n : {1, 3}) check_product({whole(k), 5, 1, 1}, {whole(k), n, 1, 1});
  }
}

/// For some types, the column and the ring buffer together are larger than 99 KiB.
TEST_P(MulMatVec, HandlesLongRowsWithLittleSharedMemory) {
  const Environment gpu("SHOAL_EMULATED_SM", "86");
  check_product({whole(28672), 5, 1, 1}, {whole(28672), 1, 1, 1});
}

/// If there are many rows, each warp takes several rows, and some rows are left over. If there are few rows, several
/// warps share a row.
TEST_P(MulMatVec, HandlesAnyNumberOfRows) {
  for (const int64_t m : {1, 2, 64, 521}) {
    const int64_t k = whole(m > 100 ? 300 : 4096 + 256);
    for (const int64_t n : {1, 2, 7}) check_product({k, m, 1, 1}, {k, n, 1, 1});
  }
}

TEST_P(MulMatVec, HandlesBatchesThatShareMatrices) {
  check_product({whole(300), 7, 2, 3}, {whole(300), 1, 6, 3});
  check_product({whole(300), 7, 2, 1}, {whole(300), 2, 4, 3});
  check_product({whole(300), 7, 1, 2}, {whole(300), 3, 3, 4});
}

TEST_P(MulMatVec, HandlesF16AndBF16ColumnsAndColumnsWithGaps) {
  for (const DType b_type : {DType::kF16, DType::kBF16}) {
    for (const int64_t n : {1, 4}) {
      const Tolerance tolerance{std::max(rough(dtype()).nmse, 1e-6)};
      const Build build = product(dtype(), {whole(264), 9, 1, 1}, {whole(264), n, 1, 1}, b_type);
      check_case({Op::kMulMat, std::string(name_of(b_type)), build, tolerance}, 3);
    }
  }
  for (const int64_t n : {1, 5}) {
    const int64_t k = whole(264);
    check("transposed", [&](Graph& g, TensorContext& w) {
      return mul_mat(g, w.add("a", dtype(), {k, 9, 1, 1}), transpose(g, g.input("b", DType::kF32, {n, k, 1, 1})));
    });
    check("columns with gaps", [&](Graph& g, TensorContext& w) {
      Tensor* b = slice(g, g.input("b", DType::kF32, {k + 3, n, 2, 1}), {0, 1, k});
      return mul_mat(g, w.add("a", dtype(), {k, 9, 2, 1}), b);
    });
    check("permuted", [&](Graph& g, TensorContext& w) {
      Tensor* b = permute(g, g.input("b", DType::kF32, {k, 2, n, 1}), {0, 2, 1, 3});
      return mul_mat(g, permute(g, w.add("a", dtype(), {k, 2, 9, 1}), {0, 2, 1, 3}), b);
    });
  }
}

/// Slices begin inside of rows, so blocks begin at any even address.
TEST_P(MulMatVec, HandlesSlicedWeights) {
  for (const int64_t n : {1, 2, 6}) {
    for (const int64_t begin : {int64_t{1}, int64_t{3}}) {
      const int64_t k = whole(2200);
      check("part of the rows", [&](Graph& g, TensorContext& w) {
        Tensor* a = w.add("a", dtype(), {k + 4 * block(), 61, 1, 1});
        return mul_mat(g, slice(g, a, {0, begin * block(), k}), g.input("b", DType::kF32, {k, n, 1, 1}));
      });
    }
  }
}

/// The weights are only aligned to a block, and no memory is allocated after the weights. The test skips types with
/// blocks of 256 elements, because such blocks keep the alignment of their buffer.
TEST_P(MulMatVec, HandlesWeightsAtOddAddresses) {
  if (block() == 256 && !traits(dtype()).is_coded) return;
  for (const int64_t k : {whole(256), whole(2400)}) {
    for (const int64_t n : {1, 3}) {
      const auto move = [&](CudaRun& run, const Tensor& out) {
        Tensor& a = *out.src[0];
        const size_t shift = dtype() == DType::kF32 ? 4 : 2;
        const CudaMemory memory(a.bytes() + shift);
        check_cuda(cudaMemcpy(memory.get() + shift, a.data, a.bytes(), cudaMemcpyDeviceToDevice));
        a.data = memory.get() + shift;
        run.run();
      };
      check_launch(product(dtype(), {k, 6, 1, 1}, {k, n, 1, 1}), rough(dtype()), current_gpu(), move);
    }
  }
}

TEST_P(MulMatVec, NaNAndInfinityReachOnlyTheirColumn) {
  const int64_t k = whole(600);
  for (const int64_t n : {1, 3, 8}) {
    Graph graph;
    TensorContext weights;
    const Tensor* node = graph.output(product(dtype(), {k, 5, 1, 1}, {k, n, 1, 1})(graph, weights));
    TensorValues leaves = random_leaves(graph, 5);
    check_odd_columns(graph, leaves, 5, [&](TensorValues& values) {
      CudaRun cuda(graph, values);
      cuda.run();
      return cuda.values(*node);
    });
  }
}

TEST_P(MulMatVec, HandlesExpertsForAnyNumberOfTokens) {
  const int64_t k = whole(330);
  for (const Experts& one : {Experts{k, 21, 5, 2, 1, 1},
                             {k, 9, 3, 3, 3, 4},
                             {k, 7, 4, 2, 1, 41},
                             {k, 6, 2, 2, 2, 19},
                             {k, 5, 1, 1, 1, 23}}) {
    check_experts(dtype(), one, rough(dtype()));
  }
}

TEST_P(MulMatVec, ExpertsOfOtherDevicesGiveZeros) {
  SelectParams many;  // more ranges than one launch can check
  for (int64_t i = 0; i < 20; ++i) many.ranges.push_back({50 - 2 * i, 1});
  const std::pair<SelectParams, int64_t> all[] = {{{{{5, 2}, {1, 2}}}, 4}, {{{{3, 1}}}, 1}, {many, 20}};
  for (const auto& [params, experts] : all) {
    for (const int64_t tokens : {1, 70}) {
      check_experts(dtype(), {whole(256), 40, experts, 2, 2, tokens}, rough(dtype()), params);
    }
  }
}

TEST_P(MulMatVec, FusesGatedUnits) {
  for (const int64_t n : {1, 2, 3, 8}) {
    for (int i = 0; i < static_cast<int>(GluKind::kCount); ++i) {
      const auto kind = static_cast<GluKind>(i);
      const int64_t k = whole(i == 0 ? 2300 : i == 1 ? 71 : 300), m = i == 2 ? 300 : 17;
      const auto build = [&](Graph& g, TensorContext& w) {
        Tensor* b = g.input("b", DType::kF32, {k, n, 1, 1});
        Tensor* gate = mul_mat(g, w.add("gate", dtype(), {k, m, 1, 1}), b);
        return glu(g, gate, mul_mat(g, w.add("up", dtype(), {k, m, 1, 1}), b), kind);
      };
      const auto launch = [&](CudaRun& run, Tensor& out) {
        Tensor &gate = *out.src[0], &up = *out.src[1];
        run.give_workspace(gate);
        ASSERT_TRUE(cuda::mul_mat_glu_supports(gate, up, out));
        cuda::mul_mat_glu_run(run.context, gate, up, kind, out);
      };
      // The activation amplifies the rounding errors of the columns.
      check_launch(build, {rough(dtype()).nmse * 4}, kGpu, launch, 6);
    }
  }
}

TEST_P(MulMatVec, FusesAdditionOfBiasOrResidual) {
  for (const int64_t n : {1, 4}) {
    const int64_t k = whole(600);
    for (const Shape& addend : {Shape{19, 1, 1, 1}, {19, n, 4, 1}}) {
      for (const bool in_place : {false, true}) {
        if (in_place && addend[2] == 1) continue;
        const auto build = [&](Graph& g, TensorContext& w) {
          Tensor* node = product(dtype(), {k, 19, 2, 1}, {k, n, 4, 1})(g, w);
          return add(g, node, g.input("addend", DType::kF32, addend));
        };
        const auto launch = [&](CudaRun& run, Tensor& out) {
          run.give_workspace(*out.src[0]);
          ASSERT_TRUE(cuda::mul_mat_add_supports(*out.src[0], *out.src[1], out));
          if (in_place) out.data = out.src[1]->data;
          cuda::mul_mat_add_run(run.context, *out.src[0], *out.src[1], out);
        };
        check_launch(build, rough(dtype()), kGpu, launch, 7);
      }
    }
  }
}

INSTANTIATE_TEST_SUITE_P(All, MulMatVec, ::testing::ValuesIn(weight_types()),
                         [](const auto& info) { return std::string(name_of(info.param)); });

/// Builds products of weights of these types and input `b` [k, n]. The first weight has `rows` rows, and each further
/// weight has one row more than the previous weight. All products are outputs.
std::vector<Tensor*> products(Graph& graph, TensorContext& weights, Tensor* b, std::span<const DType> dtypes,
                              int64_t rows) {
  std::vector<Tensor*> result;
  for (const DType dtype : dtypes) {
    const std::string name = "a" + std::to_string(graph.nodes().size());
    result.push_back(graph.output(mul_mat(graph, weights.add(name, dtype, {b->shape[0], rows++, 1, 1}), b)));
  }
  return result;
}
void run_many(CudaRun& run, const std::vector<Tensor*>& products) {
  run.give_workspace(*products.back());
  ASSERT_TRUE(cuda::mul_mat_many_supports(products, run.context.gpu));
  cuda::mul_mat_many_run(run.context, products);
  run.wait();
}

TEST(CudaMulMatMany, OnlyProductsWithEqualColumnFormsRunTogether) {
  Graph graph;
  TensorContext weights;
  Tensor* b = graph.input("b", DType::kF32, {512, 2, 1, 1});
  std::vector<std::vector<Tensor*>> forms;
  for (const std::vector<DType>& form : {std::vector{DType::kQ4_K, DType::kQ8_0, DType::kQ4_0},
                                         {DType::kQ6_K, DType::kQ2_K},
                                         {DType::kF16, DType::kF32, DType::kBF16}}) {
    forms.push_back(products(graph, weights, b, form, 11));
  }
  TensorValues leaves = random_leaves(graph, 9);
  CudaRun cuda(graph, leaves, kGpu);
  cuda.run();
  for (const auto& form : forms) {
    std::vector<std::vector<std::byte>> alone;
    for (Tensor* node : form) {
      cuda.expect(*node, {1e-4});
      alone.push_back(cuda.bytes(*node));
      check_cuda(cudaMemset(node->data, 0xff, node->bytes()));
      node->workspace = nullptr;
    }
    run_many(cuda, form);
    for (size_t i = 0; i < form.size(); ++i) EXPECT_EQ(cuda.bytes(*form[i]), alone[i]) << i;
  }
  EXPECT_FALSE(cuda::mul_mat_many_supports(std::vector{forms[0][0], forms[1][0]}, kGpu));
  EXPECT_FALSE(cuda::mul_mat_many_supports(std::vector{forms[0][0], forms[2][0]}, kGpu));
}

// The products take several steps along k. The length of a step depends on the type. The weights have more rows than a
// block has warps.
TEST(CudaMulMatMany, MultipliesOneColumnByWeightsOfAnyTypes) {
  for (const auto& dtypes : {std::array{DType::kQ4_K, DType::kF16, DType::kF32},
                             {DType::kF32, DType::kBF16, DType::kQ8_0},
                             {DType::kBF16, DType::kQ6_K, DType::kQ4_0}}) {
    Graph graph;
    TensorContext weights;
    const auto all = products(graph, weights, graph.input("b", DType::kF32, {3328, 1, 1, 1}), dtypes, 70);
    TensorValues leaves = random_leaves(graph, 9);
    CudaRun cuda(graph, leaves, kGpu);
    run_many(cuda, all);
    for (const Tensor* node : all) cuda.expect(*node, rough(node->src[0]->dtype));
  }
}

TEST(CudaMulMatFused, RefusesUnsupportedFusions) {
  Graph graph;
  TensorContext weights;
  Tensor* b = graph.input("b", DType::kF32, {256, 2, 1, 1});
  Tensor* gate = mul_mat(graph, weights.add("a0", DType::kQ4_0, {256, 8, 1, 1}), b);
  Tensor* other_type = mul_mat(graph, weights.add("a1", DType::kQ8_0, {256, 8, 1, 1}), b);
  Tensor* other_b =
      mul_mat(graph, weights.add("a2", DType::kQ4_0, {256, 8, 1, 1}), graph.input("b2", DType::kF32, {256, 2, 1, 1}));
  for (Tensor* up : {other_type, other_b}) {
    EXPECT_FALSE(cuda::mul_mat_glu_supports(*gate, *up, *glu(graph, gate, up, GluKind::kSwiglu)));
  }
  Tensor* prompt =
      mul_mat(graph, weights.add("a3", DType::kF32, {256, 8, 1, 1}), graph.input("b3", DType::kF32, {256, 9, 1, 1}));
  Tensor* bias = graph.input("bias", DType::kF32, {8, 1, 1, 1});
  EXPECT_FALSE(cuda::mul_mat_add_supports(*prompt, *bias, *add(graph, prompt, bias)));
  Tensor* half = graph.input("half", DType::kF16, {8, 1, 1, 1});
  EXPECT_FALSE(cuda::mul_mat_add_supports(*gate, *half, *add(graph, gate, half)));
  EXPECT_TRUE(cuda::mul_mat_add_supports(*gate, *bias, *add(graph, gate, bias)));
}

}  // namespace
}  // namespace shoal::test
