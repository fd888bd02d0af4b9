// Graphs must give the same results with packed weights as with plain weights. If kernels read packed rows, the results
// may differ by rounding. If a plan first unpacks the weights, the results must be bit-identical.
#include "devices/cpu/unpacked.h"

#include <gtest/gtest.h>

#include <cmath>
#include <cstring>
#include <functional>
#include <map>
#include <random>
#include <utility>

#include "base/error.h"
#include "devices/allocate.h"
#include "devices/cpu/isa.h"
#include "devices/cpu/packed_buffer.h"
#include "graph/ops/ops.h"
#include "tests/support/dtypes.h"
#include "tests/support/encoders.h"

namespace shoal::cpu {
namespace {

using Bytes = std::vector<std::byte>;
/// Adds weights and inputs to a graph, and returns the node with the result.
using Build = std::function<Tensor*(Graph&, TensorContext&)>;

constexpr int32_t kIdLimit = 13;      // exclusive upper limit of ids
constexpr int64_t kEncodedRows = 37;  // number of different encoded rows

Device& device() {
  return Registry::instance().device("CPU0");
}

int64_t group_rows() {
  return kernels().panel_rows;
}

Bytes random_rows(DType dtype, int64_t length, int64_t rows, std::mt19937_64& random) {
  std::vector<float> values(static_cast<size_t>(length * rows));
  for (float& value : values) value = static_cast<float>(random() % 20001) / 10000.0f - 1.0f;
  Bytes bytes(bytes_for(dtype, length * rows));
  test::from_f32(dtype, values.data(), bytes.data(), length * rows);
  return bytes;
}

/// Returns a few encoded rows of the dtype. All leaves repeat these rows, because encoding every row would take too
/// long.
const Bytes& encoded_rows(DType dtype, int64_t length) {
  static std::map<std::pair<DType, int64_t>, Bytes> known;
  Bytes& rows = known[{dtype, length}];
  std::mt19937_64 random(static_cast<uint64_t>(dtype) * 1000003 + static_cast<uint64_t>(length));
  if (rows.empty()) rows = random_rows(dtype, length, kEncodedRows, random);
  return rows;
}

Bytes random_leaf(const Tensor& leaf, uint64_t seed) {
  std::mt19937_64 random(seed * 1000003 + std::hash<std::string>{}(leaf.name));
  Bytes bytes(leaf.bytes());
  if (leaf.dtype == DType::kI32) {
    auto* ids = reinterpret_cast<int32_t*>(bytes.data());
    for (int64_t i = 0; i < leaf.elements(); ++i) ids[i] = static_cast<int32_t>(random() % kIdLimit);
    return bytes;
  }
  if (!traits(leaf.dtype).is_quantized) return random_rows(leaf.dtype, leaf.elements(), 1, random);
  const Bytes& rows = encoded_rows(leaf.dtype, leaf.shape[0]);
  const size_t row_bytes = bytes_for(leaf.dtype, leaf.shape[0]);
  for (size_t at = 0; at < bytes.size(); at += row_bytes) {
    std::memcpy(bytes.data() + at, rows.data() + random() % kEncodedRows * row_bytes, row_bytes);
  }
  return bytes;
}

struct Weights {
  TensorContext tensors;
  std::unique_ptr<Buffer> memory;
};

/// A graph whose weights have memory of one buffer type. Several graphs may use the same weights.
class Placed {
 public:
  Placed(const Build& build, BufferType& type, std::shared_ptr<Weights> weights = std::make_shared<Weights>())
      : weights_(std::move(weights)), result_(graph_.output(build(graph_, weights_->tensors))) {
    if (weights_->memory == nullptr) {
      weights_->memory = allocate_tensors(weights_->tensors.tensors(), type, Usage::kWeights);
    }
    for (const Tensor* weight : weights_->tensors.tensors()) EXPECT_EQ(is_packed(*weight), is_wanted(*weight, type));
    fill_weights(1);
  }
  Graph& graph() { return graph_; }
  const std::shared_ptr<Weights>& weights() const { return weights_; }
  void fill_weights(uint64_t seed) { fill(weights_->tensors.tensors(), seed); }
  void fill_inputs(uint64_t seed) { fill(graph_.inputs(), seed); }
  Bytes result() const {
    Bytes bytes(result_->bytes());
    tensor_get(*result_, bytes.data(), 0, bytes.size());
    return bytes;
  }

 private:
  static bool is_wanted(const Tensor& weight, const BufferType& type) {
    return &type == &device().weights_type() && is_packable(weight);
  }
  static void fill(std::span<Tensor* const> leaves, uint64_t seed) {
    for (Tensor* leaf : leaves) {
      const Bytes bytes = random_leaf(*leaf, seed);
      tensor_set(*leaf, bytes.data(), 0, bytes.size());
    }
  }

  std::shared_ptr<Weights> weights_;
  Graph graph_;
  Tensor* result_;
};

struct Outcome {
  Bytes bytes;
  size_t allocated;
};

Outcome run(const Build& build, BufferType& type, Backend& backend) {
  Placed placed(build, type);
  const auto plan = backend.create_plan(placed.graph());
  placed.fill_inputs(2);
  backend.compute_async(*plan);
  backend.synchronize();
  return {placed.result(), plan->allocated_bytes()};
}

/// Sum of squared differences divided by the sum of squared expected values. All values are f32.
double error_of(const Bytes& got, const Bytes& expected) {
  const auto *a = reinterpret_cast<const float*>(got.data()), *b = reinterpret_cast<const float*>(expected.data());
  double off = 0, squares = 0;
  for (size_t i = 0; i < expected.size() / 4; ++i) off += std::pow(a[i] - b[i], 2), squares += std::pow(b[i], 2);
  return squares == 0 ? off : off / squares;
}

class PackedWeights : public ::testing::TestWithParam<DType> {
 protected:
  DType dtype() const { return GetParam(); }
  /// Row length of the weights. If the dtype permits, the length is not a multiple of 64.
  int64_t k() const {
    const int64_t block = traits(dtype()).block_elems;
    return block == 1 ? 75 : 3 * block;
  }
  Tensor* weight(TensorContext& w, int64_t rows, int64_t matrices = 1) const {
    return w.add("w", dtype(), {k(), rows, matrices, 1});
  }
  /// Expects that kernels read the packed rows. The plan must then need exactly as much memory as with plain weights.
  void expect_read_packed(const Build& build, double tolerance) {
    for (const auto& backend : backends_) {
      const Outcome expected = run(build, device().buffer_type(), *backend);
      const Outcome got = run(build, device().weights_type(), *backend);
      ASSERT_EQ(got.bytes.size(), expected.bytes.size());
      EXPECT_LE(error_of(got.bytes, expected.bytes), tolerance) << backend->name();
      EXPECT_EQ(got.allocated, expected.allocated) << backend->name();
    }
  }

  /// Expects that the plan contains exactly one unpacked copy of the weights. For dtypes that are never packed, expects
  /// no copy.
  void expect_unpacked(const Build& build, size_t weight_bytes) {
    if (kernels().weights[static_cast<size_t>(dtype())].packed.pack == nullptr) weight_bytes = 0;
    for (const auto& backend : backends_) {
      const Outcome expected = run(build, device().buffer_type(), *backend);
      const Outcome got = run(build, device().weights_type(), *backend);
      EXPECT_EQ(got.bytes, expected.bytes) << backend->name();
      EXPECT_GE(got.allocated, expected.allocated + weight_bytes) << backend->name();
      EXPECT_LE(got.allocated, expected.allocated + weight_bytes + weight_bytes / 2)
          << backend->name() << ": one copy is enough";
    }
  }

  size_t weight_bytes(int64_t rows, int64_t matrices = 1) const { return bytes_for(dtype(), k() * rows * matrices); }
  Tensor* columns(Graph& g, int64_t n, int64_t batches = 1) const {
    return g.input("x", DType::kF32, {k(), n, batches, 1});
  }

 private:
  const std::unique_ptr<Backend> backends_[2] = {device().init("threads=1"), device().init("threads=2")};
};

TEST_P(PackedWeights, ProductsReadPackedRows) {
  const int64_t group = group_rows();
  for (const int64_t n : {1, 2, 7, 70}) {
    SCOPED_TRACE(n);
    for (const int64_t rows : {16, 17, 33}) {
      expect_read_packed([&](Graph& g, TensorContext& w) { return mul_mat(g, weight(w, rows), columns(g, n)); }, 1e-11);
    }
    const auto with_view = [&](auto&& view) {
      expect_read_packed(
          [&](Graph& g, TensorContext& w) {
            Tensor* part = view(g, weight(w, 3 * group + 17, 3));
            return mul_mat(g, part, columns(g, n, part->shape[2] * 2));
          },
          1e-11);
    };
    with_view([](Graph&, Tensor* w) { return w; });
    with_view([&](Graph& g, Tensor* w) { return slice(g, w, {1, group, 2 * group}); });
    with_view([&](Graph& g, Tensor* w) { return slice(g, w, {1, 2 * group, 3}); });
    with_view([&](Graph& g, Tensor* w) { return slice(g, w, {1, 3 * group, 17}); });
    with_view([&](Graph& g, Tensor* w) { return slice(g, slice(g, w, {2, 1, 2}), {1, group, group}); });
  }
}

TEST_P(PackedWeights, ExpertProductsReadPackedRows) {
  for (const int64_t tokens : {1, 5, 40}) {
    const auto with_view = [&](auto&& view) {
      expect_read_packed(
          [&](Graph& g, TensorContext& w) {
            Tensor* experts = view(g, weight(w, 2 * group_rows() + 17, kIdLimit));
            return mul_mat_id(g, experts, columns(g, 1, tokens), g.input("ids", DType::kI32, {2, tokens, 1, 1}));
          },
          1e-11);
    };
    with_view([](Graph&, Tensor* w) { return w; });
    with_view([](Graph& g, Tensor* w) { return slice(g, w, {1, group_rows(), group_rows() + 5}); });
  }
}

TEST_P(PackedWeights, GetRowsReadsPackedRows) {
  const auto with_view = [&](auto&& view) {
    expect_read_packed(
        [&](Graph& g, TensorContext& w) {
          Tensor* table = view(g, weight(w, 2 * group_rows() + 17, 2));
          return get_rows(g, table, g.input("ids", DType::kI32, {23, table->shape[2], 1, 1}));
        },
        0);
  };
  with_view([](Graph&, Tensor* w) { return w; });
  with_view([](Graph& g, Tensor* w) { return slice(g, w, {1, group_rows(), group_rows() + 13}); });
  with_view([](Graph& g, Tensor* w) { return slice(g, w, {2, 1, 1}); });
}

TEST_P(PackedWeights, IrregularViewsAreUnpackedForProducts) {
  const int64_t block = traits(dtype()).block_elems, rows = 2 * group_rows() + 17;
  for (const int64_t n : {1, 70}) {
    const auto with_view = [&](auto&& view) {
      expect_unpacked(
          [&](Graph& g, TensorContext& w) {
            Tensor* part = view(g, weight(w, rows, 2));
            Tensor* x = g.input("x", DType::kF32, {part->shape[0], n, part->shape[2], part->shape[3]});
            return mul_mat(g, part, x);
          },
          weight_bytes(rows, 2));
    };
    with_view([&](Graph& g, Tensor* w) { return slice(g, w, {1, 3, group_rows()}); });
    with_view([&](Graph& g, Tensor* w) { return slice(g, w, {0, block, block}); });
    with_view([&](Graph& g, Tensor* w) { return reshape(g, w, {k(), 2 * rows, 1, 1}); });
    if (block == 1) with_view([](Graph& g, Tensor* w) { return transpose(g, w); });
  }
  expect_unpacked(
      [&](Graph& g, TensorContext& w) {
        return get_rows(g, slice(g, weight(w, rows), {1, 1, rows - 1}), g.input("ids", DType::kI32, {9, 1, 1, 1}));
      },
      weight_bytes(rows));
  expect_unpacked(
      [&](Graph& g, TensorContext& w) {
        Tensor* experts = slice(g, weight(w, rows, kIdLimit), {1, 5, rows - 5});
        return mul_mat_id(g, experts, columns(g, 1, 3), g.input("ids", DType::kI32, {2, 3, 1, 1}));
      },
      weight_bytes(rows, kIdLimit));
}

TEST_P(PackedWeights, OpsWithoutPackedKernelsUnpackWeights) {
  const int64_t rows = 33;
  const auto with_op = [&](auto&& op) {
    expect_unpacked([&](Graph& g, TensorContext& w) { return op(g, weight(w, rows, 2)); }, weight_bytes(rows, 2));
  };
  with_op([](Graph& g, Tensor* w) { return cast(g, w, DType::kF32); });
  with_op([](Graph& g, Tensor* w) { return cast(g, slice(g, w, {1, 5, 20}), DType::kF16); });
  with_op([](Graph& g, Tensor* w) { return contiguous(g, permute(g, w, {0, 2, 1, 3})); });
  with_op([](Graph& g, Tensor* w) { return contiguous(g, w); });
  with_op([](Graph& g, Tensor* w) { return concat(g, {w, slice(g, w, {1, 1, 32}), w}, 1); });
  with_op([](Graph& g, Tensor* w) { return repeat(g, w, {w->shape[0], w->shape[1], 4, 3}); });
  if (!traits(dtype()).is_float) return;
  with_op([](Graph& g, Tensor* w) { return contiguous(g, transpose(g, w)); });
  with_op([](Graph& g, Tensor* w) { return add(g, w, g.input("x", DType::kF32, {w->shape[0], 1, 1, 1})); });
  with_op([](Graph& g, Tensor* w) { return add(g, w, w); });
  with_op([](Graph& g, Tensor* w) { return glu_fused(g, slice(g, w, {0, 1, 74}), GluKind{}); });
  with_op([](Graph& g, Tensor* w) { return soft_max(g, w, nullptr, nullptr, {1.0f}); });
  with_op([](Graph& g, Tensor* w) {  // the weight is the second operand of the product
    return mul_mat(g, g.input("a", DType::kF32, {w->shape[0], 19, 1, 1}), w);
  });
  with_op([](Graph& g, Tensor* w) { return mul_mat(g, transpose(g, w), contiguous(g, transpose(g, w))); });
}

INSTANTIATE_TEST_SUITE_P(, PackedWeights, ::testing::ValuesIn(test::weight_types()),
                         [](const auto& info) { return std::string(name_of(info.param)); });

// Tests of plans that unpack weights.

constexpr Shape kShape{64, 40, 1, 1};

/// A graph with two weights. Several nodes read each weight in unpacked form. Products also read both weights in packed
/// form.
Tensor* build_several(Graph& g, TensorContext& w) {
  const auto weight = [&](const char* name, DType dtype) {
    Tensor* known = w.find(name);
    return known != nullptr ? known : w.add(name, dtype, kShape);
  };
  Tensor *a = weight("a", DType::kF32), *b = weight("b", DType::kQ4_0);
  Tensor* x = g.input("x", DType::kF32, {64, 1, 1, 1});
  Tensor* sum = add(g, a, x);
  Tensor* plain = cast(g, b, DType::kF32);
  Tensor* both = mul(g, sum, plain);
  Tensor* shifted = add(g, slice(g, both, {1, 0, 20}), slice(g, a, {1, 3, 20}));
  Tensor* more = add(g, shifted, cast(g, slice(g, b, {1, 19, 20}), DType::kF32));
  Tensor* product = mul_mat(g, a, more);
  return add(g, product, mul_mat(g, b, x));
}

Bytes expected_of(uint64_t weight_seed, uint64_t input_seed) {
  Placed placed(build_several, device().buffer_type());
  const auto backend = device().init("threads=1");
  const auto plan = backend->create_plan(placed.graph());
  placed.fill_weights(weight_seed);
  placed.fill_inputs(input_seed);
  backend->compute_async(*plan);
  backend->synchronize();
  return placed.result();
}

void expect_close(const Bytes& got, const Bytes& expected) {
  ASSERT_EQ(got.size(), expected.size());
  EXPECT_LE(error_of(got, expected), 1e-11);
}

TEST(UnpackedPlans, EachWeightIsUnpackedOnce) {
  const auto backend = device().init("threads=2");
  const Outcome plain = run(build_several, device().buffer_type(), *backend);
  const Outcome packed = run(build_several, device().weights_type(), *backend);
  const size_t weights = bytes_for(DType::kF32, 64 * 40) + bytes_for(DType::kQ4_0, 64 * 40);
  expect_close(packed.bytes, plain.bytes);
  EXPECT_GE(packed.allocated, plain.allocated + weights);
  EXPECT_LE(packed.allocated, plain.allocated + weights + 256);
}

TEST(UnpackedPlans, EachRunSeesTheCurrentWeights) {
  Placed placed(build_several, device().weights_type());
  const auto backend = device().init("threads=2");
  const auto plan = backend->create_plan(placed.graph());
  for (const uint64_t seed : {1, 5, 6}) {
    placed.fill_weights(seed);
    placed.fill_inputs(seed + 1);
    backend->compute_async(*plan);
    backend->synchronize();
    expect_close(placed.result(), expected_of(seed, seed + 1));
  }
}

TEST(UnpackedPlans, SegmentsUnpackTheirWeights) {
  const auto backend = device().init("threads=2");
  for (int step : {1, 2, 3, 5}) {
    Placed placed(build_several, device().weights_type());
    PlanOptions options;
    const int nodes = static_cast<int>(placed.graph().nodes().size());
    for (int cut = step; cut < nodes; cut += step) options.cuts.push_back(cut);
    const auto plan = backend->create_plan(placed.graph(), options);
    ASSERT_EQ(plan->segments(), static_cast<int>(options.cuts.size()) + 1);
    for (const uint64_t seed : {1, 7}) {
      placed.fill_weights(seed);
      placed.fill_inputs(2);
      for (int segment = 0; segment < plan->segments(); ++segment) backend->compute_async(*plan, segment, segment + 1);
      backend->synchronize();
      SCOPED_TRACE(step);
      expect_close(placed.result(), expected_of(seed, 2));
    }
  }
}

TEST(UnpackedPlans, GraphRangesUnpackTheirWeights) {
  const auto backend = device().init("threads=2");
  Placed placed(build_several, device().weights_type());
  const int nodes = static_cast<int>(placed.graph().nodes().size());
  std::vector<std::unique_ptr<GraphPlan>> plans;
  for (int begin = 0; begin < nodes; begin += 3) {
    plans.push_back(backend->create_plan({&placed.graph(), begin, std::min(begin + 3, nodes)}));
  }
  placed.fill_inputs(2);
  for (const auto& plan : plans) backend->compute_async(*plan);
  backend->synchronize();
  expect_close(placed.result(), expected_of(1, 2));
}

/// The first graph is destroyed before the plan runs with the second graph.
TEST(UnpackedPlans, PlansCanBeUpdatedForAnotherGraph) {
  const auto backend = device().init("threads=2");
  auto first = std::make_unique<Placed>(build_several, device().weights_type());
  const auto plan = backend->create_plan(first->graph(), {.cuts = {2, 4}});
  const auto run_for = [&](Placed& placed, uint64_t seed) {
    placed.fill_weights(seed);
    placed.fill_inputs(seed + 1);
    for (int segment = 0; segment < 3; ++segment) backend->compute_async(*plan, segment, segment + 1);
    backend->synchronize();
    expect_close(placed.result(), expected_of(seed, seed + 1));
  };
  run_for(*first, 1);
  const size_t allocated = plan->allocated_bytes();
  auto second = std::make_unique<Placed>(build_several, device().weights_type(), first->weights());
  ASSERT_TRUE(backend->update_plan(*plan, second->graph()));
  first.reset();
  run_for(*second, 2);
  run_for(*second, 3);
  EXPECT_EQ(plan->allocated_bytes(), allocated);
  // The weights move to plain memory and then back to packed memory.
  for (BufferType* type : {&device().buffer_type(), &device().weights_type()}) {
    const std::shared_ptr<Weights> weights = second->weights();
    for (Tensor* weight : weights->tensors.tensors()) weights->memory->unplace(*weight);
    weights->memory.reset();
    auto next = std::make_unique<Placed>(build_several, *type, weights);
    ASSERT_TRUE(backend->update_plan(*plan, next->graph()));
    second = std::move(next);
    run_for(*second, 4);
  }
}

}  // namespace
}  // namespace shoal::cpu
