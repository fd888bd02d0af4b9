// Tests of mul_mat and mul_mat_id that are not conformance cases. Results must have the same bits for any number of
// threads and any division of the rows. Operands may have gaps.
#include <gtest/gtest.h>

#include <functional>
#include <map>
#include <string>
#include <vector>

#include "devices/device.h"
#include "graph/ops/ops.h"
#include "tests/support/dtypes.h"
#include "tests/support/reference.h"
#include "tests/support/tensors.h"

namespace shoal::test {
namespace {

std::unique_ptr<Backend> cpu(int threads) {
  return Registry::instance().init("CPU0:threads=" + std::to_string(threads));
}

/// Runs the graph that `build` makes, on a CPU device with this number of threads. Returns the results of the output
/// nodes by name.
using Results = std::map<std::string, Values>;
Results run_on_cpu(int threads, uint64_t seed, const std::function<void(Graph&, TensorContext&)>& build) {
  Graph graph;
  TensorContext weights;
  build(graph, weights);
  TensorValues leaves = random_leaves(graph, seed);
  Results results;
  for (const auto& [tensor, values] : run_graph(*cpu(threads), graph, leaves)) results[tensor->name] = values;
  return results;
}

class MulMat : public ::testing::TestWithParam<DType> {};

// If two consecutive products use the same columns, the second product reuses the converted columns of the first
// product. Products of 3 and 4 rows are too small for several threads, so a single thread computes such a product. The
// single thread must not reuse columns that several threads have converted, and several threads must not reuse columns
// that a single thread has converted.
TEST_P(MulMat, ProductsReuseConvertedColumns) {
  for (const int64_t n : {1, 3, 9}) {
    const auto build = [&](Graph& graph, TensorContext& weights) {
      Tensor* b = graph.input("b", DType::kF32, {256, n, 1, 1});
      for (const int64_t rows : {4, 100, 101, 3, 102}) {
        const std::string name = "rows " + std::to_string(rows);
        graph.output(mul_mat(graph, weights.add("of " + name, GetParam(), {256, rows, 1, 1}), b, name));
      }
    };
    const Results expected = run_on_cpu(1, 6, build);
    for (const int threads : {2, 3}) {
      EXPECT_EQ(run_on_cpu(threads, 6, build), expected) << "n " << n << ", " << threads << " threads";
    }
  }
}

TEST_P(MulMat, ResultsDoNotDependOnThreadCountOrShards) {
  for (const int64_t n : {1, 9}) {
    const auto build = [&](Graph& graph, TensorContext& weights) {
      Tensor* a = weights.add("a", GetParam(), {2304, 43, 1, 1});  // rows are longer than one step of a panel
      Tensor* b = graph.input("b", DType::kF32, {2304, n, 2, 1});
      graph.output(mul_mat(graph, a, b, "whole"));
      graph.output(mul_mat(graph, slice(graph, a, {1, 0, 21}), b, "first"));
      graph.output(mul_mat(graph, slice(graph, a, {1, 21, 22}), b, "second"));
    };
    Results results = run_on_cpu(1, 5, build);
    for (size_t row = 0; row < results["whole"].size() / 43; ++row) {
      for (size_t i = 0; i < 43; ++i) {
        const double part = i < 21 ? results["first"][row * 21 + i] : results["second"][row * 22 + i - 21];
        ASSERT_EQ(results["whole"][row * 43 + i], part) << "n " << n << ", row " << row << ", element " << i;
      }
    }
    for (const int threads : {2, 5}) {
      EXPECT_EQ(run_on_cpu(threads, 5, build), results) << threads << " threads, n " << n;
    }
  }
}

TEST_P(MulMat, ResultsDoNotDependOnDivisionIntoBatches) {
  for (const int64_t n : {1, 7}) {
    Results results = run_on_cpu(2, 6, [&](Graph& graph, TensorContext& weights) {
      Tensor* a = weights.add("a", GetParam(), {256, 20, 2, 1});
      Tensor* b = graph.input("b", DType::kF32, {256, n, 6, 1});
      graph.output(mul_mat(graph, a, b, "whole"));
      graph.output(mul_mat(graph, slice(graph, a, {2, 1, 1}), slice(graph, b, {2, 4, 2}), "part"));
    });
    const auto parts = static_cast<std::ptrdiff_t>(results["part"].size());
    EXPECT_EQ(results["part"], Values(results["whole"].end() - parts, results["whole"].end())) << "n " << n;
  }
}

TEST_P(MulMat, ExpertProductsDoNotDependOnThreadCountOrShards) {
  for (const int64_t tokens : {1, 20}) {
    const auto build = [&](Graph& graph, TensorContext& weights) {
      Tensor* experts = weights.add("experts", GetParam(), {256, 19, 5, 1});
      Tensor* x = graph.input("x", DType::kF32, {256, 1, tokens, 1});
      Tensor* ids = graph.input("ids", DType::kI32, {2, tokens, 1, 1});
      graph.output(mul_mat_id(graph, experts, x, ids, {}, "whole"));
      // "some" uses experts 3 and 4, and "others" uses experts 0 to 2. In each element, one of these two products is
      // zero. So the sum of the two products equals the product with all experts.
      graph.output(mul_mat_id(graph, slice(graph, experts, {2, 3, 2}), x, ids, {{{3, 2}}}, "some"));
      graph.output(mul_mat_id(graph, slice(graph, experts, {2, 0, 3}), x, ids, {{{0, 3}}}, "others"));
      graph.output(mul_mat_id(graph, slice(graph, experts, {1, 12, 7}), x, ids, {}, "rows"));
    };
    Results results = run_on_cpu(1, 7, build);
    for (size_t i = 0; i < results["whole"].size(); ++i) {
      const double some = results["some"][i], other = results["others"][i];
      ASSERT_TRUE(some == 0 || other == 0) << i;
      ASSERT_EQ(results["whole"][i], some + other) << i;
      if (i % 19 >= 12) {
        ASSERT_EQ(results["whole"][i], results["rows"][i / 19 * 7 + i % 19 - 12]) << i;
      }
    }
    EXPECT_EQ(run_on_cpu(3, 7, build), results) << tokens;
  }
}

INSTANTIATE_TEST_SUITE_P(All, MulMat, ::testing::ValuesIn(weight_types()),
                         [](const auto& info) { return std::string(name_of(info.param)); });

void expect_reference(Graph& graph, Tensor* node, double nmse) {
  TensorValues leaves = random_leaves(graph, 8);
  const TensorValues results = run_graph(*cpu(2), graph, leaves);
  EXPECT_TRUE(close_to(results.at(node), reference_eval(graph, leaves).at(node), {nmse}));
}

TEST(MulMatViews, MultipliesTransposedOperands) {
  for (const DType a_type : {DType::kF32, DType::kF16, DType::kBF16}) {
    for (const DType b_type : {DType::kF32, DType::kF16}) {
      for (const int64_t n : {1, 3, 11}) {
        Graph graph;
        Tensor* a = transpose(graph, graph.input("a", a_type, {21, 600, 2, 1}));
        Tensor* b = transpose(graph, graph.input("b", b_type, {n, 600, 2, 1}));
        SCOPED_TRACE(describe(*a) + " " + describe(*b));
        expect_reference(graph, graph.output(mul_mat(graph, a, b)), 1e-10);
      }
    }
  }
}

TEST(MulMatViews, MultipliesQuantisedWeightsByTransposedColumns) {
  for (const int64_t n : {1, 9}) {
    Graph graph;
    TensorContext weights;
    Tensor* a = weights.add("a", DType::kQ8_0, {320, 21, 1, 1});
    Tensor* b = transpose(graph, graph.input("b", DType::kF16, {n, 320, 1, 1}));
    expect_reference(graph, graph.output(mul_mat(graph, a, b)), 1e-4);
  }
}

TEST(MulMatViews, EmptySumsAreZero) {
  for (const DType dtype : weight_types()) {
    Graph graph;
    TensorContext weights;
    Tensor* product = graph.output(
        mul_mat(graph, weights.add("a", dtype, {0, 5, 1, 1}), graph.input("b", DType::kF32, {0, 9, 2, 1})));
    TensorValues leaves = random_leaves(graph, 9);
    EXPECT_EQ(run_graph(*cpu(2), graph, leaves)[product], Values(90)) << name_of(dtype);
  }
}

struct OutlierCase {
  DType dtype;
  double factor;
};

class Outliers : public ::testing::TestWithParam<OutlierCase> {};

// One channel of the activations is large and has small weights. With 30 tokens, some experts have few columns and
// other experts have many columns.
TEST_P(Outliers, OtherChannelsKeepTheirPrecision) {
  const auto [dtype, factor] = GetParam();
  constexpr int64_t kElements = 2080, kChannel = 1100;  // rows are longer than one step of a panel
  for (const int64_t n : {1, 4, 5, 30}) {
    Graph graph;
    TensorContext weights;
    Tensor* x = graph.input("x", DType::kF32, {kElements, n, 1, 1});
    Tensor* ids = graph.input("ids", DType::kI32, {2, n, 1, 1});
    Tensor* product = mul_mat(graph, weights.add("a", dtype, {kElements, 43, 1, 1}), x);
    Tensor* experts = weights.add("experts", dtype, {kElements, 19, 5, 1});
    Tensor* routed = mul_mat_id(graph, experts, reshape(graph, x, {kElements, 1, n, 1}), ids);
    graph.output(product), graph.output(routed);
    TensorValues leaves = random_leaves(graph, 10);
    for (auto& [leaf, values] : leaves) {
      if (leaf->dtype == DType::kI32) continue;
      const double scale = leaf == x ? factor : 1 / factor;
      for (size_t i = kChannel; i < values.size(); i += kElements) values[i] *= scale;
      values = rounded(leaf->dtype, values);
    }
    const TensorValues expected = reference_eval(graph, leaves);
    const auto backend = cpu(2);
    for (BufferType* memory : {&backend->device().buffer_type(), &backend->device().weights_type()}) {
      GraphRun run(*backend, graph, leaves, memory);
      run.run();
      const TensorValues results = run.results();
      for (const Tensor* node : {product, routed}) {
        EXPECT_TRUE(close_to(results.at(node), expected.at(node), {1e-6})) << describe(*node) << ", n " << n;
      }
    }
  }
}

std::vector<OutlierCase> outlier_cases() {
  std::vector<OutlierCase> cases;
  for (const DType dtype : {DType::kF32, DType::kF16, DType::kBF16}) {
    for (const double factor : {1, 30, 100, 1000, 10000}) cases.push_back({dtype, factor});
  }
  return cases;
}

INSTANTIATE_TEST_SUITE_P(All, Outliers, ::testing::ValuesIn(outlier_cases()), [](const auto& info) {
  return std::string(name_of(info.param.dtype)) + "_x" + std::to_string(static_cast<int>(info.param.factor));
});

}  // namespace
}  // namespace shoal::test
