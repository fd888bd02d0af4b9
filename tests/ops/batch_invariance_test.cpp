// A row of a result has the same bits for any number of rows in the batch, for any other rows in the batch, and for any
// number of threads. Each test compares the rows of batches with the results of single rows.
//
// ctest runs these tests with every SHOAL_CPU_ISA.
#include <fmt/format.h>
#include <gtest/gtest.h>

#include <cstring>
#include <functional>
#include <string>
#include <vector>

#include "base/error.h"
#include "devices/device.h"
#include "graph/ops/ops.h"
#include "tests/support/dtypes.h"
#include "tests/support/tensors.h"

namespace shoal::test {
namespace {

std::unique_ptr<Backend> cpu(int threads) {
  return Registry::instance().init("CPU0:threads=" + std::to_string(threads));
}

/// Rows [first, first + count) of a batch.
struct Batch {
  int64_t first, count;
};

std::string name_of(const Batch& batch) {
  return fmt::format("rows {} to {}", batch.first, batch.first + batch.count - 1);
}

/// Builds the part of a result that belongs to the rows of a batch.
using Build = std::function<Tensor*(Graph&, TensorContext&, const Batch&)>;

/// Checks that `whole` consists of the values of `rows`, one row after another.
void expect_rows(const Values& whole, const std::vector<const Values*>& rows, const std::string& name) {
  const size_t size = rows.at(0)->size();
  ASSERT_EQ(whole.size(), rows.size() * size) << name;
  ASSERT_GT(size, 0u);
  for (size_t r = 0; r < rows.size(); ++r) {
    for (size_t i = 0; i < size; ++i) {
      const double got = whole[r * size + i], alone = (*rows[r])[i];
      ASSERT_EQ(std::memcmp(&got, &alone, sizeof got), 0)
          << name << ": row " << r << ", element " << i << ": " << got << ", alone " << alone;
    }
  }
}

/// Values of leaves that replace random values, by name.
using Given = std::vector<std::pair<std::string, Values>>;

/// The batches of a test.
struct Comparison {
  int64_t rows;  ///< number of different rows
  std::vector<Batch> batches;
  Given given = {};
};

/// Runs all batches and all single rows in one graph.
void expect_invariance(const Build& build, const Comparison& run, int threads, bool pack) {
  Graph graph;
  TensorContext weights;
  std::vector<Tensor*> alone, batches;
  for (int64_t row = 0; row < run.rows; ++row) alone.push_back(graph.output(build(graph, weights, {row, 1})));
  for (const Batch& batch : run.batches) batches.push_back(graph.output(build(graph, weights, batch)));
  TensorValues leaves = random_leaves(graph, 21);
  for (auto& [leaf, values] : leaves) {
    for (const auto& [name, given] : run.given) {
      if (leaf->name == name) values = given;
    }
  }
  const auto backend = cpu(threads);
  Device& device = backend->device();
  GraphRun graph_run(*backend, graph, leaves, pack ? &device.weights_type() : &device.buffer_type());
  graph_run.run();
  const TensorValues results = graph_run.results();
  for (size_t i = 0; i < batches.size(); ++i) {
    const Batch& batch = run.batches[i];
    std::vector<const Values*> rows;
    for (int64_t row = batch.first; row < batch.first + batch.count; ++row) rows.push_back(&results.at(alone.at(row)));
    expect_rows(results.at(batches[i]), rows,
                fmt::format("{} threads, {}{}", threads, name_of(batch), pack ? ", packed" : ""));
    if (testing::Test::HasFatalFailure()) return;
  }
}

/// All batches of 1 to `most` rows, some of them with other first rows, and larger batches.
std::vector<Batch> batches_of(int64_t most, const std::vector<int64_t>& larger) {
  std::vector<Batch> batches;
  for (int64_t count = 1; count <= most; ++count) batches.push_back({count % 3 == 0 ? (most - count) / 2 : 0, count});
  for (const int64_t count : larger) batches.push_back({0, count});
  return batches;
}

/// Returns a leaf of the graph or of the context, or adds the leaf.
Tensor* leaf(Graph& graph, const std::string& name, DType dtype, const Shape& shape) {
  for (Tensor* input : graph.inputs()) {
    if (input->name == name) return input;
  }
  return graph.input(name, dtype, shape);
}
Tensor* leaf(TensorContext& context, const std::string& name, DType dtype, const Shape& shape) {
  for (Tensor* tensor : context.tensors()) {
    if (tensor->name == name) return tensor;
  }
  return context.add(name, dtype, shape);
}

// --- products ---

class BatchInvariance : public ::testing::TestWithParam<DType> {
 protected:
  /// Lengths of rows. If blocks have fewer than 256 elements, the lengths are not multiples of 256. The second length
  /// is longer than a panel.
  std::vector<int64_t> lengths() const {
    const int64_t block = traits(GetParam()).block_elems;
    if (block == 1) return {77, 2093};
    if (block < 256) return {3 * block, 2048 + block};
    return {256, 2304};
  }
};

TEST_P(BatchInvariance, RowsOfProductsDoNotDependOnTheBatch) {
  constexpr int64_t kRows = 512;
  for (const int64_t k : lengths()) {
    const Build build = [&](Graph& g, TensorContext& w, const Batch& batch) {
      Tensor* a = leaf(w, "a", GetParam(), {k, 43, 1, 1});
      return mul_mat(g, a, slice(g, leaf(g, "b", DType::kF32, {k, kRows, 1, 1}), {1, batch.first, batch.count}));
    };
    const Comparison run{kRows, batches_of(64, {96, 128, 200, 512})};
    for (const int threads : {1, 2, 3}) {
      for (const bool pack : {false, true}) expect_invariance(build, run, threads, pack);
    }
  }
}

// The experts of slot 0 are equal, so their number of rows is the number of tokens. Slot 1 has different experts.
TEST_P(BatchInvariance, RowsOfExpertProductsDoNotDependOnTheBatch) {
  constexpr int64_t kTokens = 64;
  Values ids;
  for (int64_t token = 0; token < kTokens; ++token) ids.insert(ids.end(), {2, static_cast<double>(token * token % 5)});
  for (const int64_t k : lengths()) {
    const Build build = [&](Graph& g, TensorContext& w, const Batch& batch) {
      Tensor* experts = leaf(w, "experts", GetParam(), {k, 37, 5, 1});
      Tensor* x = slice(g, leaf(g, "x", DType::kF32, {k, 1, kTokens, 1}), {2, batch.first, batch.count});
      Tensor* chosen = slice(g, leaf(g, "ids", DType::kI32, {2, kTokens, 1, 1}), {1, batch.first, batch.count});
      return mul_mat_id(g, experts, x, chosen);
    };
    const Comparison run{kTokens, batches_of(64, {}), {{"ids", ids}}};
    for (const int threads : {1, 3}) {
      for (const bool pack : {false, true}) expect_invariance(build, run, threads, pack);
    }
  }
}

// Large elements in some columns are multiplied separately.
TEST_P(BatchInvariance, RowsWithOutliersDoNotDependOnTheBatch) {
  constexpr int64_t kRows = 40;
  const int64_t k = lengths().back();
  Values b(k * kRows);
  for (size_t i = 0; i < b.size(); ++i) b[i] = i % 97 == 5 ? 1000.0 : static_cast<double>(i % 89) / 89 - 0.5;
  const Build build = [&](Graph& g, TensorContext& w, const Batch& batch) {
    Tensor* a = leaf(w, "a", GetParam(), {k, 43, 1, 1});
    return mul_mat(g, a, slice(g, leaf(g, "b", DType::kF32, {k, kRows, 1, 1}), {1, batch.first, batch.count}));
  };
  const Comparison run{kRows, batches_of(40, {}), {{"b", rounded(DType::kF32, b)}}};
  for (const bool pack : {false, true}) expect_invariance(build, run, 2, pack);
}

TEST_P(BatchInvariance, PackingDoesNotChangeProducts) {
  for (const int64_t n : {1, 2, 3, 8, 65}) {
    Graph graph;
    TensorContext weights;
    const int64_t k = lengths().back();
    Tensor* node = graph.output(
        mul_mat(graph, weights.add("a", GetParam(), {k, 43, 1, 1}), graph.input("b", DType::kF32, {k, n, 1, 1})));
    TensorValues leaves = random_leaves(graph, 22);
    const auto backend = cpu(2);
    std::vector<Values> results;
    for (BufferType* memory : {&backend->device().buffer_type(), &backend->device().weights_type()}) {
      GraphRun run(*backend, graph, leaves, memory);
      run.run();
      results.push_back(run.results().at(node));
    }
    EXPECT_EQ(results[0], results[1]) << n;
  }
}

INSTANTIATE_TEST_SUITE_P(All, BatchInvariance, ::testing::ValuesIn(weight_types()),
                         [](const auto& info) { return std::string(shoal::name_of(info.param)); });

// --- other ops ---

struct RowCase {
  Op op;
  std::string name;
  Build build;
};

constexpr int64_t kWidth = 530, kManyRows = 130;

/// Rows of an input [kWidth, kManyRows], or of an input with another width.
Tensor* rows_of(Graph& g, const Batch& batch, const char* name = "x", DType dtype = DType::kF32,
                int64_t width = kWidth) {
  return slice(g, leaf(g, name, dtype, {width, kManyRows, 1, 1}), {1, batch.first, batch.count});
}
/// Heads of an input [64, 6, kManyRows]. The rows are on axis 2.
Tensor* heads_of(Graph& g, const Batch& batch) {
  return slice(g, leaf(g, "heads", DType::kF32, {64, 6, kManyRows, 1}), {2, batch.first, batch.count});
}
Tensor* integers_of(Graph& g, const Batch& batch, const char* name) {
  return slice(g, leaf(g, name, DType::kI32, {kManyRows, 1, 1, 1}), {0, batch.first, batch.count});
}

class RowCases {
 public:
  std::vector<RowCase> cases;

  void add(Op op, const std::string& name, Build build) { cases.push_back({op, name, std::move(build)}); }
  /// Adds cases for the float types. f(graph, x) builds the node.
  template <class F>
  void add_floats(Op op, const std::string& name, F f) {
    for (const DType dtype : {DType::kF32, DType::kF16, DType::kBF16}) {
      add(op, fmt::format("{} {}", name, shoal::name_of(dtype)),
          [=](Graph& g, TensorContext&, const Batch& batch) { return f(g, rows_of(g, batch, "x", dtype)); });
    }
  }
};

void add_elementwise(RowCases& all) {
  for (int i = 0; i < static_cast<int>(UnaryKind::kCount); ++i) {
    const auto kind = static_cast<UnaryKind>(i);
    all.add_floats(Op::kUnary, fmt::format("unary {}", i), [=](Graph& g, Tensor* x) { return unary(g, x, kind); });
  }
  for (int i = 0; i < static_cast<int>(GluKind::kCount); ++i) {
    const auto kind = static_cast<GluKind>(i);
    all.add_floats(Op::kGlu, fmt::format("glu {}", i), [=](Graph& g, Tensor* x) { return glu_fused(g, x, kind); });
    all.add(Op::kGlu, fmt::format("glu {} of two", i), [=](Graph& g, TensorContext&, const Batch& batch) {
      return glu(g, rows_of(g, batch), rows_of(g, batch, "up"), kind);
    });
  }
  all.add_floats(Op::kScale, "scale", [](Graph& g, Tensor* x) { return scale(g, x, {0.3f, 1}); });
  all.add_floats(Op::kClamp, "clamp", [](Graph& g, Tensor* x) { return clamp(g, x, {-0.1f, 0.2f}); });
  const auto add_binary = [&](Op op, const char* name, auto make) {
    all.add(op, name, [=](Graph& g, TensorContext&, const Batch& batch) {
      return make(g, rows_of(g, batch), rows_of(g, batch, "y"));
    });
    all.add(op, fmt::format("{} of a weight", name), [=](Graph& g, TensorContext& w, const Batch& batch) {
      return make(g, rows_of(g, batch), leaf(w, "w", DType::kF32, {kWidth, 1, 1, 1}));
    });
    all.add(op, fmt::format("{} of a number per row", name), [=](Graph& g, TensorContext&, const Batch& batch) {
      return make(g, rows_of(g, batch), rows_of(g, batch, "s", DType::kF32, 1));
    });
  };
  add_binary(Op::kAdd, "add", [](Graph& g, Tensor* a, Tensor* b) { return add(g, a, b); });
  add_binary(Op::kSub, "sub", [](Graph& g, Tensor* a, Tensor* b) { return sub(g, a, b); });
  add_binary(Op::kMul, "mul", [](Graph& g, Tensor* a, Tensor* b) { return mul(g, a, b); });
  add_binary(Op::kDiv, "div", [](Graph& g, Tensor* a, Tensor* b) { return div(g, a, b); });
  add_binary(Op::kCompare, "compare",
             [](Graph& g, Tensor* a, Tensor* b) { return compare(g, a, b, CompareKind::kLess); });
  add_binary(Op::kWhere, "where",
             [](Graph& g, Tensor* a, Tensor* b) { return where(g, compare(g, a, b, CompareKind::kLess), a, b); });
}

void add_rows(RowCases& all) {
  all.add_floats(Op::kRmsNorm, "rms_norm", [](Graph& g, Tensor* x) { return rms_norm(g, x, {}); });
  all.add_floats(Op::kLayerNorm, "layer_norm", [](Graph& g, Tensor* x) { return layer_norm(g, x, {}); });
  all.add_floats(Op::kSumRows, "sum_rows", [](Graph& g, Tensor* x) { return sum_rows(g, x); });
  all.add_floats(Op::kCumsum, "cumsum", [](Graph& g, Tensor* x) { return cumsum(g, x); });
  all.add_floats(Op::kArgmax, "argmax", [](Graph& g, Tensor* x) { return argmax(g, x); });
  all.add_floats(Op::kTopK, "top_k", [](Graph& g, Tensor* x) { return top_k(g, x, 40); });
  all.add_floats(Op::kSoftMax, "soft_max", [](Graph& g, Tensor* x) { return soft_max(g, x, nullptr, nullptr, {2}); });
  all.add(Op::kSoftMax, "soft_max with a mask and sinks", [](Graph& g, TensorContext& w, const Batch& batch) {
    return soft_max(g, rows_of(g, batch), rows_of(g, batch, "mask", DType::kF16),
                    leaf(w, "sinks", DType::kF32, {1, 1, 1, 1}), {0.5f});
  });
  for (const RopeMode mode : {RopeMode::kNeighbours, RopeMode::kHalves}) {
    all.add(
        Op::kRope, fmt::format("rope {}", static_cast<int>(mode)), [=](Graph& g, TensorContext&, const Batch& batch) {
          return rope(g, heads_of(g, batch), integers_of(g, batch, "positions"), nullptr, {.dims = 48, .mode = mode});
        });
  }
  all.add(Op::kMergeAttention, "merge_attention", [](Graph& g, TensorContext&, const Batch& batch) {
    Tensor* parts = leaf(g, "parts", DType::kF32, {65, 6, kManyRows, 3});
    Tensor* lse = leaf(g, "lse", DType::kF32, {3, 6, kManyRows, 1});
    return merge_attention(g, slice(g, parts, {2, batch.first, batch.count}),
                           slice(g, lse, {2, batch.first, batch.count}));
  });
}

void add_copies(RowCases& all) {
  for (int i = 0; i < kDTypeCount; ++i) {
    const auto dtype = static_cast<DType>(i);
    all.add(Op::kGetRows, fmt::format("get_rows {}", shoal::name_of(dtype)),
            [=](Graph& g, TensorContext& w, const Batch& batch) {
              return get_rows(g, leaf(w, "table", dtype, {512, 50, 1, 1}), integers_of(g, batch, "ids"));
            });
    if (!traits(dtype).from_f32 || dtype == DType::kI32 || dtype == DType::kI64) continue;
    all.add(Op::kCast, fmt::format("cast to {}", shoal::name_of(dtype)),
            [=](Graph& g, TensorContext&, const Batch& batch) {
              return cast(g, cast(g, rows_of(g, batch, "x", DType::kF32, 512), dtype), DType::kF32);
            });
    // Every batch has a cache of its own. get_rows() reads the rows that the batch has written.
    all.add(Op::kSetRows, fmt::format("set_rows {}", shoal::name_of(dtype)),
            [=](Graph& g, TensorContext& w, const Batch& batch) {
              Tensor* cache =
                  w.add(fmt::format("cache{}", w.tensors().size()), dtype, {512, kManyRows, 1, 1}, Role::kCache);
              Tensor* ids = slice(g, leaf(g, "each", DType::kI32, {kManyRows, 1, 1, 1}), {0, batch.first, batch.count});
              return get_rows(g, set_rows(g, cache, rows_of(g, batch, "x", DType::kF32, 512), ids), ids);
            });
    all.add(
        Op::kSetSlice, fmt::format("set_slice {}", shoal::name_of(dtype)),
        [=](Graph& g, TensorContext& w, const Batch& batch) {
          Tensor* cache =
              w.add(fmt::format("cache{}", w.tensors().size()), dtype, {512, kManyRows, 1, 1}, Role::kCache);
          Tensor* ids = slice(g, leaf(g, "each", DType::kI32, {kManyRows, 1, 1, 1}), {0, batch.first, batch.count});
          return get_rows(g, set_slice(g, cache, rows_of(g, batch, "x", DType::kF32, 512), {1, batch.first, {}}), ids);
        });
  }
  all.add_floats(Op::kContiguous, "contiguous", [](Graph& g, Tensor* x) {
    return contiguous(g, slice(g, x, {0, 3, 400}));
  });
  all.add_floats(Op::kConcat, "concat", [](Graph& g, Tensor* x) { return concat(g, {x, x}, 0); });
  all.add_floats(Op::kRepeat, "repeat", [](Graph& g, Tensor* x) {
    return repeat(g, x, {2 * kWidth, x->shape[1], 1, 1});
  });
}

std::vector<RowCase> row_cases() {
  RowCases all;
  add_elementwise(all), add_rows(all), add_copies(all);
  return all.cases;
}

/// Ops without rows that are independent tokens, ops with a state, and ops whose results are tested elsewhere.
bool has_rows(Op op) {
  switch (op) {
    case Op::kMulMat:
    case Op::kMulMatId:
    case Op::kAttention:
    case Op::kCausalConv:
    case Op::kGatedDelta:
    case Op::kConv2d:
    case Op::kConvTranspose2d:
    case Op::kPool2d:
    case Op::kPad:
    case Op::kUpsample:
    case Op::kFill:
    case Op::kExternal:
      return false;
    default:
      return info(op).kind == OpKind::kCompute;
  }
}

class RowInvariance : public ::testing::TestWithParam<Op> {};

TEST_P(RowInvariance, RowsDoNotDependOnTheBatch) {
  Values each, ids;
  for (int64_t i = 0; i < kManyRows; ++i)
    each.push_back(static_cast<double>(i)), ids.push_back(static_cast<double>(i % 50));
  const Comparison run{kManyRows, batches_of(17, {31, 32, 33, 64, 65, 96, 130}), {{"each", each}, {"ids", ids}}};
  int count = 0;
  for (const RowCase& one : row_cases()) {
    if (one.op != GetParam()) continue;
    ++count;
    for (const int threads : {1, 2, 3}) {
      SCOPED_TRACE(one.name);
      expect_invariance(one.build, run, threads, false);
      ASSERT_FALSE(HasFatalFailure());
    }
  }
  ASSERT_GT(count, 0) << "the op needs a case in tests/ops/batch_invariance_test.cpp";
}

std::vector<Op> row_ops() {
  std::vector<Op> ops;
  for (int i = 0; i < kOpCount; ++i) {
    if (has_rows(static_cast<Op>(i))) ops.push_back(static_cast<Op>(i));
  }
  return ops;
}

INSTANTIATE_TEST_SUITE_P(All, RowInvariance, ::testing::ValuesIn(row_ops()),
                         [](const auto& info) { return std::string(shoal::name_of(info.param)); });

}  // namespace
}  // namespace shoal::test
