// Products of few columns and with experts on CUDA kernels, beyond the cases of PluginConformance: every dtype with
// every number of columns, rows at odd addresses and of odd lengths, shared batches, sorted pairs, and the fused forms.
#include <gmock/gmock.h>

#include <array>
#include <cmath>
#include <cstring>
#include <utility>

#include "devices/cuda/ops/mul_mat_fused.h"
#include "graph/ops/ops.h"
#include "tests/cuda/op_runner.h"
#include "tests/support/dtypes.h"
#include "tests/support/environment.h"

namespace shoal::test {
namespace {

/// As in the conformance cases: columns may be rounded to 8 bits for quantised weights.
Tolerance tolerance_of(DType a) {
  return {traits(a).is_quantized ? 1e-4 : a == DType::kF32 ? 1e-11 : 1e-6};
}

using Build = std::function<Tensor*(Graph&, TensorContext&)>;

class MulMatVec : public ::testing::TestWithParam<DType> {
 protected:
  DType dtype() const { return GetParam(); }
  /// k is rounded up to whole blocks.
  int64_t whole(int64_t k) const { return (k + block() - 1) / block() * block(); }
  int64_t block() const { return traits(dtype()).block_elems; }
  void check(Op op, const std::string& name, const Build& build) const {
    check_case({op, name, build, tolerance_of(dtype())}, 11);
  }
  void check_product(const Shape& a, const Shape& b, DType b_type = DType::kF32) const {
    check(Op::kMulMat, to_string(a) + " x " + to_string(b),
          [&](Graph& g, TensorContext& w) { return mul_mat(g, w.add("a", dtype(), a), g.input("b", b_type, b)); });
  }
};

TEST_P(MulMatVec, AnyNumberOfColumns) {
  for (int64_t n = 1; n <= 9; ++n) check_product({whole(520), 21, 1, 1}, {whole(520), n, 1, 1});
}

/// Units that are not whole, several steps, rings that go round.
TEST_P(MulMatVec, AnyLength) {
  for (const int64_t k : {1, 31, 32, 64, 70, 96, 776, 2048, 2056, 4128, 12400}) {
    for (const int64_t n : {1, 3}) check_product({whole(k), 5, 1, 1}, {whole(k), n, 1, 1});
  }
}

/// The column and the ring of some types do not fit together into 99 KiB.
TEST_P(MulMatVec, LongRowsOnAGpuWithLittleSharedMemory) {
  const Environment gpu("SHOAL_EMULATED_SM", "86");
  check_product({whole(28672), 5, 1, 1}, {whole(28672), 1, 1, 1});
}

/// As many as make a warp take several, with some left over; and few, which warps share.
TEST_P(MulMatVec, AnyNumberOfRows) {
  for (const int64_t m : {1, 2, 64, 521}) {
    const int64_t k = whole(m > 100 ? 300 : 4096 + 256);
    for (const int64_t n : {1, 2, 7}) check_product({k, m, 1, 1}, {k, n, 1, 1});
  }
}

TEST_P(MulMatVec, BatchesThatShareMatrices) {
  check_product({whole(300), 7, 2, 3}, {whole(300), 1, 6, 3});
  check_product({whole(300), 7, 2, 1}, {whole(300), 2, 4, 3});
  check_product({whole(300), 7, 1, 2}, {whole(300), 3, 3, 4});
}

TEST_P(MulMatVec, ColumnsOfOtherDtypesAndWithGaps) {
  for (const DType b_type : {DType::kF16, DType::kBF16}) {
    const bool exact = dtype() == DType::kF32 && b_type == DType::kF32;
    const Tolerance tolerance = exact ? tolerance_of(dtype()) : Tolerance{std::max(tolerance_of(dtype()).nmse, 1e-6)};
    for (const int64_t n : {1, 4}) {
      const int64_t k = whole(264);
      check_case({Op::kMulMat, std::string(name_of(b_type)),
                  [&](Graph& g, TensorContext& w) {
                    return mul_mat(g, w.add("a", dtype(), {k, 9, 1, 1}), g.input("b", b_type, {k, n, 1, 1}));
                  },
                  tolerance},
                 3);
    }
  }
  for (const int64_t n : {1, 5}) {
    const int64_t k = whole(264);
    check(Op::kMulMat, "transposed", [&](Graph& g, TensorContext& w) {
      return mul_mat(g, w.add("a", dtype(), {k, 9, 1, 1}), transpose(g, g.input("b", DType::kF32, {n, k, 1, 1})));
    });
    check(Op::kMulMat, "columns with gaps", [&](Graph& g, TensorContext& w) {
      Tensor* b = slice(g, g.input("b", DType::kF32, {k + 3, n, 2, 1}), {0, 1, k});
      return mul_mat(g, w.add("a", dtype(), {k, 9, 2, 1}), b);
    });
    check(Op::kMulMat, "permuted", [&](Graph& g, TensorContext& w) {
      Tensor* b = permute(g, g.input("b", DType::kF32, {k, 2, n, 1}), {0, 2, 1, 3});
      return mul_mat(g, permute(g, w.add("a", dtype(), {k, 2, 9, 1}), {0, 2, 1, 3}), b);
    });
  }
}

/// Rows start within what was a row: blocks at any even address.
TEST_P(MulMatVec, WeightsThatAreParts) {
  for (const int64_t n : {1, 2, 6}) {
    for (const int64_t begin : {int64_t{1}, int64_t{3}}) {
      const int64_t k = whole(2200);
      check(Op::kMulMat, "part of the rows", [&](Graph& g, TensorContext& w) {
        Tensor* a = w.add("a", dtype(), {k + 4 * block(), 61, 1, 1});
        return mul_mat(g, slice(g, a, {0, begin * block(), k}), g.input("b", DType::kF32, {k, n, 1, 1}));
      });
    }
  }
}

/// Weights at an address that only has the alignment of a block, and nothing allocated behind them. Blocks of 256
/// elements keep the alignment of their buffer.
TEST_P(MulMatVec, WeightsAtOddAddresses) {
  if (block() == 256 && !traits(dtype()).is_coded) return;
  for (const int64_t k : {whole(256), whole(2400)}) {
    for (const int64_t n : {1, 3}) {
      Graph graph;
      TensorContext weights;
      Tensor* a = weights.add("a", dtype(), {k, 6, 1, 1});
      Tensor* node = graph.output(mul_mat(graph, a, graph.input("b", DType::kF32, {k, n, 1, 1})));
      TensorValues leaves = random_leaves(graph, 4);
      CudaRun cuda(graph, leaves);
      const size_t shift = dtype() == DType::kF32 ? 4 : 2;
      const CudaMemory memory(a->bytes() + shift);
      const std::vector<std::byte> bytes = encode(a->dtype, leaves.at(a));
      check_cuda(cudaMemcpy(memory.get() + shift, bytes.data(), bytes.size(), cudaMemcpyHostToDevice));
      a->data = memory.get() + shift;
      cuda.run();
      EXPECT_TRUE(close_to(cuda.values(*node), reference_eval(graph, leaves).at(node), tolerance_of(dtype()))) << k;
    }
  }
}

TEST_P(MulMatVec, NaNAndInfinitiesReachTheirColumnAlone) {
  const int64_t k = whole(600);
  for (const int64_t n : {1, 3, 8}) {
    Graph graph;
    TensorContext weights;
    Tensor* b = graph.input("b", DType::kF32, {k, n, 1, 1});
    Tensor* node = graph.output(mul_mat(graph, weights.add("a", dtype(), {k, 5, 1, 1}), b));
    TensorValues leaves = random_leaves(graph, 5);
    const auto run = [&] {
      CudaRun cuda(graph, leaves);
      cuda.run();
      return cuda.values(*node);
    };
    const Values clean = run();
    for (const double odd : {std::nan(""), -std::nan(""), HUGE_VAL, -HUGE_VAL}) {
      for (const int64_t at : {int64_t{0}, int64_t{45}, k - 1}) {
        const int64_t column = n / 2;
        double& element = leaves[b][static_cast<size_t>(column * k + at)];
        const double before = std::exchange(element, odd);
        const Values values = run();
        element = before;
        for (size_t i = 0; i < values.size(); ++i) {
          const bool good = static_cast<int64_t>(i) / 5 == column ? !std::isfinite(values[i]) : values[i] == clean[i];
          EXPECT_TRUE(good) << odd << " at " << at << " of " << n << " columns: result " << i << " is " << values[i];
        }
      }
    }
  }
}

struct Experts {
  int64_t m, experts, slots, x_slots, tokens;
};

TEST_P(MulMatVec, FewAndManyPairsOfExperts) {
  const Experts all[] = {{21, 5, 2, 1, 1}, {9, 3, 3, 3, 4}, {7, 4, 2, 1, 41}, {6, 2, 2, 2, 19}, {5, 1, 1, 1, 23}};
  for (const Experts& one : all) {
    const int64_t k = whole(330);
    check(Op::kMulMatId, to_string(Shape{one.m, one.experts, one.slots, one.tokens}), [&](Graph& g, TensorContext& w) {
      Tensor* x = g.input("x", DType::kF32, {k, one.x_slots, one.tokens, 1});
      Tensor* ids = g.input("ids", DType::kI32, {one.slots, one.tokens, 1, 1});
      return mul_mat_id(g, w.add("experts", dtype(), {k, one.m, one.experts, 1}), x, ids);
    });
  }
}

TEST_P(MulMatVec, ForeignExpertsGiveZeros) {
  SelectParams many;  // more ranges than a launch looks at
  for (int64_t i = 0; i < 20; ++i) many.ranges.push_back({50 - 2 * i, 1});
  for (const SelectParams& params : {SelectParams{{{5, 2}, {1, 2}}}, SelectParams{{{3, 1}}}, many}) {
    for (const int64_t tokens : {1, 70}) {
      int64_t experts = 0;
      for (const IndexRange& range : params.ranges) experts += range.length;
      const int64_t k = whole(256);
      check(Op::kMulMatId, to_string(Shape{experts, tokens, 1, 1}), [&](Graph& g, TensorContext& w) {
        Tensor* x = g.input("x", DType::kF32, {k, 2, tokens, 1});
        Tensor* ids = g.input("ids", DType::kI32, {2, tokens, 1, 1});
        return mul_mat_id(g, w.add("experts", dtype(), {k, 40, experts, 1}), x, ids, params);
      });
    }
  }
}

/// Workspace of a mul_mat node.
std::unique_ptr<CudaMemory> give_workspace(Tensor& node) {
  auto memory = std::make_unique<CudaMemory>(cuda::kernel_for(Op::kMulMat).workspace(node, {}));
  node.workspace = memory->get();
  return memory;
}
const cuda::LaunchContext kContext{nullptr, {0, 90, 4, 227 * 1024}};

TEST_P(MulMatVec, GatedUnits) {
  for (const int64_t n : {1, 2, 3, 8}) {
    for (int kind = 0; kind < static_cast<int>(GluKind::kCount); ++kind) {
      const int64_t k = whole(kind == 0 ? 2300 : kind == 1 ? 71 : 300), m = kind == 2 ? 300 : 17;
      Graph graph;
      TensorContext weights;
      Tensor* b = graph.input("b", DType::kF32, {k, n, 1, 1});
      Tensor* gate = mul_mat(graph, weights.add("gate", dtype(), {k, m, 1, 1}), b);
      Tensor* up = mul_mat(graph, weights.add("up", dtype(), {k, m, 1, 1}), b);
      Tensor* out = graph.output(glu(graph, gate, up, static_cast<GluKind>(kind)));
      TensorValues leaves = random_leaves(graph, 6);
      CudaRun cuda(graph, leaves);
      const auto workspace = give_workspace(*gate);
      ASSERT_TRUE(cuda::mul_mat_glu_supports(*gate, *up, *out));
      cuda::mul_mat_glu_run(kContext, *gate, *up, static_cast<GluKind>(kind), *out);
      check_cuda(cudaStreamSynchronize(nullptr));
      // The activation makes more of what rounding did to the columns.
      const Tolerance tolerance{tolerance_of(dtype()).nmse * 4};
      EXPECT_TRUE(close_to(cuda.values(*out), reference_eval(graph, leaves).at(out), tolerance))
          << "n " << n << ", kind " << kind;
    }
  }
}

TEST_P(MulMatVec, SumsWithBiasAndResidual) {
  for (const int64_t n : {1, 4}) {
    for (const bool residual : {false, true}) {
      for (const bool in_place : {false, true}) {
        if (in_place && !residual) continue;
        Graph graph;
        TensorContext weights;
        const int64_t k = whole(600);
        Tensor* product =
            mul_mat(graph, weights.add("a", dtype(), {k, 19, 2, 1}), graph.input("b", DType::kF32, {k, n, 4, 1}));
        Tensor* addend = graph.input("addend", DType::kF32, residual ? product->shape : Shape{19, 1, 1, 1});
        Tensor* sum = graph.output(add(graph, product, addend));
        TensorValues leaves = random_leaves(graph, 7);
        CudaRun cuda(graph, leaves);
        const auto workspace = give_workspace(*product);
        ASSERT_TRUE(cuda::mul_mat_add_supports(*product, *addend, *sum));
        Tensor& out = in_place ? *addend : *sum;
        cuda::mul_mat_add_run(kContext, *product, *addend, out);
        check_cuda(cudaStreamSynchronize(nullptr));
        EXPECT_TRUE(close_to(cuda.values(out), reference_eval(graph, leaves).at(sum), tolerance_of(dtype()))) << n;
      }
    }
  }
}

INSTANTIATE_TEST_SUITE_P(All, MulMatVec, ::testing::ValuesIn(weight_types()),
                         [](const auto& info) { return std::string(name_of(info.param)); });

TEST(CudaMulMatMany, PreparesColumnsOnceForAllOfAForm) {
  Graph graph;
  TensorContext weights;
  Tensor* b = graph.input("b", DType::kF32, {512, 2, 1, 1});
  std::vector<std::vector<Tensor*>> forms;
  for (const std::vector<DType>& form : {std::vector{DType::kQ4_K, DType::kQ8_0, DType::kQ4_0},
                                         {DType::kQ6_K, DType::kQ2_K},
                                         {DType::kF16, DType::kF32, DType::kBF16}}) {
    auto& products = forms.emplace_back();
    for (const DType dtype : form) {
      const std::string name = "a" + std::to_string(graph.nodes().size());
      const int64_t rows = 11 + static_cast<int64_t>(products.size());
      products.push_back(graph.output(mul_mat(graph, weights.add(name, dtype, {512, rows, 1, 1}), b)));
    }
  }
  TensorValues leaves = random_leaves(graph, 9);
  CudaRun cuda(graph, leaves);
  cuda.run();
  const TensorValues expected = reference_eval(graph, leaves);
  for (const auto& products : forms) {
    std::vector<std::vector<std::byte>> alone;
    for (Tensor* product : products) {
      EXPECT_TRUE(close_to(cuda.values(*product), expected.at(product), {1e-4}));
      alone.push_back(cuda.bytes(*product));
      check_cuda(cudaMemset(product->data, 0xff, product->bytes()));
      product->workspace = nullptr;
    }
    const auto workspace = give_workspace(*products.back());
    ASSERT_TRUE(cuda::mul_mat_many_supports(products, kContext.gpu));
    cuda::mul_mat_many_run(kContext, products);
    check_cuda(cudaStreamSynchronize(nullptr));
    for (size_t i = 0; i < products.size(); ++i) EXPECT_EQ(cuda.bytes(*products[i]), alone[i]) << i;
  }
  EXPECT_FALSE(cuda::mul_mat_many_supports(std::vector{forms[0][0], forms[1][0]}, kContext.gpu));
  EXPECT_FALSE(cuda::mul_mat_many_supports(std::vector{forms[0][0], forms[2][0]}, kContext.gpu));
}

// Several steps of k, which are of as many elements as each type has, and more rows than a block has warps.
TEST(CudaMulMatMany, OneColumnTakesMatricesOfAnyTypes) {
  for (const auto& dtypes : {std::array{DType::kQ4_K, DType::kF16, DType::kF32},
                             {DType::kF32, DType::kBF16, DType::kQ8_0},
                             {DType::kBF16, DType::kQ6_K, DType::kQ4_0}}) {
    Graph graph;
    TensorContext weights;
    Tensor* b = graph.input("b", DType::kF32, {3328, 1, 1, 1});
    std::vector<Tensor*> products;
    for (const DType dtype : dtypes) {
      products.push_back(
          graph.output(mul_mat(graph, weights.add(std::string(name_of(dtype)), dtype, {3328, 70, 1, 1}), b)));
    }
    TensorValues leaves = random_leaves(graph, 9);
    CudaRun cuda(graph, leaves);
    const auto workspace = give_workspace(*products.back());
    ASSERT_TRUE(cuda::mul_mat_many_supports(products, kContext.gpu));
    cuda::mul_mat_many_run(kContext, products);
    check_cuda(cudaStreamSynchronize(nullptr));
    const TensorValues expected = reference_eval(graph, leaves);
    for (size_t i = 0; i < dtypes.size(); ++i) {
      EXPECT_TRUE(close_to(cuda.values(*products[i]), expected.at(products[i]), tolerance_of(dtypes[i]))) << i;
    }
  }
}

TEST(CudaMulMatFused, RefusesWhatItCannotJoin) {
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
