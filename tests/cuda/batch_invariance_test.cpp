// A row of a result depends only on its own input row. Each test compares the rows of batches of 1 to 64 tokens with
// the results of single tokens, bit by bit. Products use different kernels for few and for many columns. So a column of
// a product has the same bits in all batches of a class, and the tests state the classes.
#include <fmt/format.h>
#include <gtest/gtest.h>

#include <algorithm>
#include <cmath>
#include <functional>
#include <map>
#include <tuple>
#include <vector>

#include "devices/cuda/fusion.h"
#include "devices/cuda/ops/mul_mat_tiles.h"
#include "graph/readers.h"
#include "tests/cuda/products.h"
#include "tests/support/same_bits.h"

namespace shoal::test {
namespace {

constexpr int64_t kTokens = 64;

/// The tokens [first, first + count).
struct Batch {
  int64_t first = 0, count = kTokens;
};

/// A graph whose nodes share leaves. Each leaf of tokens contains the values of all kTokens tokens.
struct Sources {
  Graph graph;
  TensorContext caches;

  /// A leaf that all batches read.
  Tensor* shared(const std::string& name, DType dtype, const Shape& shape) {
    Tensor* const found = caches.find(name);
    return found != nullptr ? found : caches.add(name, dtype, shape, Role::kCache);
  }
  /// The part of a leaf that contains the tokens of a batch. shape[axis] is kTokens.
  Tensor* tokens(const std::string& name, DType dtype, const Shape& shape, int axis, const Batch& batch) {
    Tensor* const found = graph.find(name);
    Tensor* const all = found != nullptr ? found : graph.input(name, dtype, shape);
    return slice(graph, all, {axis, batch.first, batch.count});
  }
  Tensor* rows(const std::string& name, int64_t length, const Batch& batch) {
    return tokens(name, DType::kF32, {length, kTokens, 1, 1}, 1, batch);
  }
  Tensor* integers(const std::string& name, const Batch& batch) {
    return tokens(name, DType::kI32, {kTokens, 1, 1, 1}, 0, batch);
  }
};

/// Builds the node of a batch.
using BuildBatch = std::function<Tensor*(Sources&, const Batch&)>;

struct Options {
  int axis = 1;            ///< axis of the result whose first `count` indices are the tokens
  int64_t state_rows = 0;  ///< number of rows after the tokens that belong to each of kTokens sequences
  cuda::GpuTraits gpu = current_gpu();
  bool fused = false;  ///< whether nodes are fused as in a plan
  bool few = false;    ///< whether only some numbers of tokens are tested
  std::function<void(const Graph&, TensorValues&)> fill = [](const Graph&, TensorValues&) {};
};

/// The elements of a tensor whose index on `axis` is in [first, first + count).
Values part(const Values& values, const Shape& shape, int axis, int64_t first, int64_t count) {
  int64_t inner = 1;
  for (int i = 0; i < axis; ++i) inner *= shape[i];
  Values result;
  const int64_t plane = inner * shape[axis];
  for (auto at = values.begin(); at != values.end(); at += plane) {
    result.insert(result.end(), at + first * inner, at + (first + count) * inner);
  }
  return result;
}

/// Runs the nodes of all batches.
class BatchRun {
 public:
  BatchRun(const BuildBatch& build, const std::vector<Batch>& batches, const Options& options)
      : batches_(batches), options_(options) {
    for (const Batch& batch : batches) nodes_.push_back(sources_.graph.output(build(sources_, batch)));
    TensorValues leaves = random_leaves(sources_.graph, 17);
    options.fill(sources_.graph, leaves);
    CudaRun cuda(sources_.graph, leaves, options.gpu);
    if (options.fused) {
      run_fused(cuda);
    } else {
      cuda.run();
    }
    for (const Tensor* node : nodes_) values_.push_back(cuda.values(*node));
  }
  /// The values that belong to a token in the result of batch `index`.
  Values of(size_t index, int64_t token) const {
    const Tensor& node = *nodes_[index];
    const Batch& batch = batches_[index];
    Values result = part(values_[index], node.shape, options_.axis, token - batch.first, 1);
    const Values state =
        part(values_[index], node.shape, options_.axis, batch.count + token * options_.state_rows, options_.state_rows);
    result.insert(result.end(), state.begin(), state.end());
    return result;
  }
  const Tensor& node(size_t index) const { return *nodes_[index]; }

 private:
  void run_fused(CudaRun& cuda) {
    std::vector<Tensor*> nodes;
    for (Tensor* node : sources_.graph.nodes()) {
      if (info(node->op).kind != OpKind::kCompute) continue;
      cuda.give_workspace(*node);
      nodes.push_back(node);
    }
    const Readers readers(whole(sources_.graph), {});
    size_t steps = 0;
    for (std::span<Tensor* const> rest = nodes; !rest.empty(); ++steps) {
      const cuda::Step step = cuda::fuse(rest, readers, options_.gpu);
      run_step(cuda.context, step);
      rest = rest.subspan(step.nodes.size());
    }
    EXPECT_EQ(steps, batches_.size()) << "each batch is one step";
    cuda.wait();
  }

  std::vector<Batch> batches_;
  Options options_;
  Sources sources_;
  std::vector<Tensor*> nodes_;
  std::vector<Values> values_;
};

/// Batches of 1 to kTokens tokens with different first tokens, so tokens have different neighbours.
std::vector<Batch> batches_of(bool few) {
  std::vector<Batch> batches;
  for (int64_t count = 1; count <= kTokens; ++count) {
    const bool is_usual = count <= 9 || count == 16 || count == 33 || count == kTokens;
    if (is_usual || !few) batches.push_back({count * 29 % (kTokens - count + 1), count});
  }
  return batches;
}

/// Every token has the bits that it has alone.
void check(const BuildBatch& build, const Options& options = {}) {
  std::vector<Batch> batches = batches_of(options.few);
  const size_t alone = batches.size();
  for (int64_t token = 0; token < kTokens; ++token) batches.push_back({token, 1});
  const BatchRun run(build, batches, options);
  for (size_t i = 0; i < alone; ++i) {
    const auto [first, count] = batches[i];
    for (int64_t token = first; token < first + count; ++token) {
      ASSERT_TRUE(same_bits(run.of(i, token), run.of(alone + static_cast<size_t>(token), token)))
          << describe(run.node(i)) << ": token " << token << " of " << first << " to " << first + count - 1;
    }
  }
}

void set(const Graph& graph, TensorValues& leaves, const char* name, const std::function<double(int64_t)>& value) {
  Values& values = leaves.at(graph.find(name));
  for (size_t i = 0; i < values.size(); ++i) values[i] = value(static_cast<int64_t>(i));
}

// --- rows ---

/// Lengths of rows that a warp computes, or a block with one or several quads per thread.
constexpr int64_t kLengths[] = {7, 64, 512, 513, 2050, 9001};

TEST(CudaBatchInvariance, ElementwiseOps) {
  for (const int64_t length : {7, 64, 515}) {
    check([=](Sources& s, const Batch& b) { return add(s.graph, s.rows("x", length, b), s.rows("y", length, b)); });
    check([=](Sources& s, const Batch& b) {
      return mul(s.graph, s.rows("x", length, b), s.shared("w", DType::kF32, {length, 1, 1, 1}));
    });
    check([=](Sources& s, const Batch& b) { return div(s.graph, s.rows("x", length, b), s.rows("y", 1, b)); });
    check([=](Sources& s, const Batch& b) { return scale(s.graph, s.rows("x", length, b), {0.3f, 0.1f}); });
    check([=](Sources& s, const Batch& b) { return clamp(s.graph, s.rows("x", length, b), {-0.5f, 0.5f}); });
    for (const UnaryKind kind : {UnaryKind::kSilu, UnaryKind::kGelu, UnaryKind::kTanh, UnaryKind::kSigmoid}) {
      check([=](Sources& s, const Batch& b) { return unary(s.graph, s.rows("x", length, b), kind); });
    }
    check([=](Sources& s, const Batch& b) {
      return glu(s.graph, s.rows("x", length, b), s.rows("y", length, b), GluKind::kSwiglu);
    });
    check([=](Sources& s, const Batch& b) { return glu_fused(s.graph, s.rows("x", 2 * length, b), GluKind::kGeglu); });
    check([=](Sources& s, const Batch& b) { return cast(s.graph, s.rows("x", length, b), DType::kF16); });
  }
}

TEST(CudaBatchInvariance, Norms) {
  for (const int64_t length : kLengths) {
    const Options options{.few = length > 600};
    check([=](Sources& s, const Batch& b) { return rms_norm(s.graph, s.rows("x", length, b), {1e-5f}); }, options);
    check([=](Sources& s, const Batch& b) { return layer_norm(s.graph, s.rows("x", length, b), {1e-5f}); }, options);
  }
}

TEST(CudaBatchInvariance, NormsFusedWithAdditionsAndProducts) {
  for (const int64_t length : kLengths) {
    for (const bool sum : {false, true}) {
      const BuildBatch build = [=](Sources& s, const Batch& b) {
        Tensor* x = s.rows("x", length, b);
        if (sum) x = s.graph.output(add(s.graph, x, s.rows("y", length, b)));
        return mul(s.graph, rms_norm(s.graph, x, {1e-5f}), s.shared("w", DType::kF32, {length, 1, 1, 1}));
      };
      check(build, {.fused = true, .few = length > 600});
    }
  }
}

TEST(CudaBatchInvariance, SoftMax) {
  for (const int64_t length : kLengths) {
    check([=](Sources& s, const Batch& b) { return soft_max(s.graph, s.rows("x", length, b), nullptr, nullptr, {2}); },
          {.few = length > 600});
  }
  check([=](Sources& s, const Batch& b) {
    Tensor* x = s.tokens("x", DType::kF32, {70, kTokens, 3, 1}, 1, b);
    return soft_max(s.graph, x, s.rows("mask", 70, b), s.shared("sinks", DType::kF32, {3, 1, 1, 1}), {2});
  });
}

TEST(CudaBatchInvariance, SumsAndChoices) {
  for (const int64_t length : {7, 512, 513, 9001}) {
    const Options options{.few = length > 600};
    check([=](Sources& s, const Batch& b) { return sum_rows(s.graph, s.rows("x", length, b)); }, options);
    check([=](Sources& s, const Batch& b) { return cumsum(s.graph, s.rows("x", length, b)); }, options);
    check([=](Sources& s, const Batch& b) { return top_k(s.graph, s.rows("x", length, b), 4); }, options);
  }
  check(
      [=](Sources& s, const Batch& b) {
        Tensor* parts = s.tokens("parts", DType::kF32, {33, 4, kTokens, 3}, 2, b);
        return merge_attention(s.graph, parts, permute(s.graph, slice(s.graph, parts, {0, 32, 1}), {3, 1, 2, 0}));
      },
      {.axis = 2});
}

TEST(CudaBatchInvariance, Rope) {
  const auto positions = [](const Graph& graph, TensorValues& leaves) {
    set(graph, leaves, "positions", [](int64_t i) { return static_cast<double>(i * 7919 % 40000); });
  };
  for (const RopeMode mode : {RopeMode::kNeighbours, RopeMode::kHalves}) {
    for (const float ext : {0.0f, 1.0f}) {
      check(
          [=](Sources& s, const Batch& b) {
            Tensor* x = s.tokens("x", DType::kF32, {64, 3, kTokens, 1}, 2, b);
            return rope(s.graph, x, s.integers("positions", b), nullptr,
                        {.dims = 48, .mode = mode, .freq_scale = 0.25f, .ext_factor = ext, .original_context = 4096});
          },
          {.axis = 2, .fill = positions});
    }
  }
}

// --- ops with a state ---

/// Token i belongs to sequence i, whose state is in slot 3 * i % kTokens. Some tokens begin their sequence.
void fill_states(const Graph& graph, TensorValues& leaves) {
  set(graph, leaves, "positions", [](int64_t i) { return static_cast<double>(i % 5); });
  set(graph, leaves, "sequences", [](int64_t i) { return static_cast<double>(i); });
  set(graph, leaves, "slots", [](int64_t i) { return static_cast<double>(3 * i % kTokens); });
}
StateSlots slots_of(Sources& s, const Batch& b) {
  return {s.integers("sequences", b), s.shared("slots", DType::kI32, {kTokens, 1, 1, 1})};
}

TEST(CudaBatchInvariance, StatesOfManySequences) {
  for (const int64_t taps : {2, 4}) {
    check(
        [=](Sources& s, const Batch& b) {
          return causal_conv(s.graph, s.rows("x", 70, b), s.shared("w", DType::kF32, {taps, 70, 1, 1}),
                             s.shared("state", DType::kF32, {70, (taps - 1) * kTokens, 1, 1}),
                             s.integers("positions", b), {}, slots_of(s, b));
        },
        {.state_rows = taps - 1, .fill = fill_states});
  }
  for (const int64_t size : {17, 32}) {
    check(
        [=](Sources& s, const Batch& b) {
          const auto f32 = [&](const char* name, Shape shape, int axis) {
            return s.tokens(name, DType::kF32, shape, axis, b);
          };
          const Shape keys{size, 1, kTokens, 1}, shares{2, kTokens, 1, 1};
          return gated_delta(s.graph, f32("q", keys, 2), f32("k", keys, 2), f32("v", {size, 2, kTokens, 1}, 2),
                             f32("decay", shares, 1), f32("beta", shares, 1),
                             s.shared("state", DType::kF32, {size, size * kTokens, 2, 1}), s.integers("positions", b),
                             {}, {}, slots_of(s, b));
        },
        {.state_rows = size, .fill = fill_states});
  }
}

/// Computes the tokens 0 to 63 of one sequence in parts of `most` tokens. `build` computes one part.
using BuildPart = std::function<Tensor*(Sources&, const Batch&, Tensor* state)>;
Values in_parts(const BuildPart& build, const Shape& state_shape, int64_t most) {
  Sources s;
  Tensor* state = s.shared("state", DType::kF32, state_shape);
  std::vector<Tensor*> nodes;
  for (int64_t first = 0; first < kTokens; first += most) {
    const Batch batch{first, std::min(most, kTokens - first)};
    nodes.push_back(s.graph.output(build(s, batch, state)));
    state = slice(s.graph, nodes.back(), {1, batch.count, state_shape[1]});
  }
  TensorValues leaves = random_leaves(s.graph, 3);
  set(s.graph, leaves, "positions", [](int64_t i) { return static_cast<double>(i + 5); });
  for (auto& [leaf, values] : leaves) {
    for (double& x : values) {
      if (leaf->name == "decay") x = -std::abs(x);
      if (leaf->name == "k" || leaf->name == "q") x /= 8;
    }
  }
  CudaRun cuda(s.graph, leaves);
  cuda.run();
  Values result;
  for (size_t i = 0; i < nodes.size(); ++i) {
    const int64_t length = nodes[i]->shape[1], count = length - state_shape[1], last = i + 1 == nodes.size();
    const Values values = cuda.values(*nodes[i]);
    for (int64_t row = 0; row < (last != 0 ? length : count); ++row) {
      const Values of_row = part(values, nodes[i]->shape, 1, row, 1);
      result.insert(result.end(), of_row.begin(), of_row.end());
    }
  }
  return result;
}
void check_parts(const BuildPart& build, const Shape& state_shape) {
  const Values single = in_parts(build, state_shape, 1);
  for (int64_t most = 2; most <= kTokens; ++most) {
    ASSERT_TRUE(same_bits(in_parts(build, state_shape, most), single)) << most << " tokens at a time";
  }
}

TEST(CudaBatchInvariance, StatesOfOneSequence) {
  check_parts(
      [](Sources& s, const Batch& b, Tensor* state) {
        return causal_conv(s.graph, s.rows("x", 40, b), s.shared("w", DType::kF32, {4, 40, 1, 1}), state,
                           s.integers("positions", b));
      },
      {40, 3, 1, 1});
  check_parts(
      [](Sources& s, const Batch& b, Tensor* state) {
        const auto f32 = [&](const char* name, Shape shape, int axis) {
          return s.tokens(name, DType::kF32, shape, axis, b);
        };
        const Shape rows{32, 2, kTokens, 1}, shares{2, kTokens, 1, 1};
        return gated_delta(s.graph, f32("q", rows, 2), f32("k", rows, 2), f32("v", rows, 2), f32("decay", shares, 1),
                           f32("beta", shares, 1), state, s.integers("positions", b), {});
      },
      {32, 32, 2, 1});
}

// --- attention ---

struct Heads {
  DType keys = DType::kF16, values = keys;
  int64_t d = 32, e = 32, group = 2;
  bool latent = false;
};

/// Three sequences have 256 KV rows each, in pages of 32 rows. Sequences and positions of neighbouring tokens differ.
void check_attention(const Heads& n, bool paged, bool few) {
  constexpr int64_t kPage = 32, kWidth = 8, kRows = 3 * kPage * kWidth;
  const BuildBatch build = [=](Sources& s, const Batch& b) {
    Tensor* q = permute(s.graph, s.tokens("q", DType::kF32, {n.d, n.group, kTokens, 1}, 2, b), {0, 2, 1, 3});
    Tensor* k = s.shared("k", n.keys, {n.d, kRows, 1, 1});
    Tensor* v = n.latent ? slice(s.graph, k, {0, 0, n.e}) : s.shared("v", n.values, {n.e, kRows, 1, 1});
    Tensor* positions = s.integers("positions", b);
    AttentionParams params{.scale = 0.3f, .causal = true};
    if (!paged) return attention(s.graph, q, k, v, positions, nullptr, nullptr, params);
    params.page = kPage;
    return paged_attention(s.graph, q, k, v, positions, nullptr, s.shared("table", DType::kI32, {kWidth, 3, 1, 1}),
                           s.integers("sequences", b), params);
  };
  const auto fill = [=](const Graph& graph, TensorValues& leaves) {
    set(graph, leaves, "positions", [=](int64_t i) { return static_cast<double>(i * 101 % (paged ? 256 : kRows)); });
    if (!paged) return;
    set(graph, leaves, "table", [](int64_t i) { return static_cast<double>(i * 7 % (3 * kWidth)); });
    set(graph, leaves, "sequences", [](int64_t i) { return static_cast<double>(i < 20 ? i * 5 % 3 : i / 13 % 3); });
  };
  cuda::GpuTraits gpu = current_gpu();
  gpu.processors = 24;
  check(build, {.axis = 2, .gpu = gpu, .few = few, .fill = fill});
}

TEST(CudaBatchInvariance, Attention) {
  const Heads all[] = {{},
                       {.keys = DType::kBF16, .d = 64, .e = 40, .group = 5},
                       {.keys = DType::kQ8_0, .d = 96, .e = 96},
                       {.d = 264, .e = 128, .group = 3, .latent = true},
                       {.keys = DType::kQ8_0, .d = 288, .e = 64},
                       {.keys = DType::kF32}};
  for (const Heads& heads : all) {
    for (const bool paged : {false, true}) check_attention(heads, paged, &heads != all);
  }
}

// --- products ---

/// The kernel that computes a product: a number, and the tiles if there are tiles.
using ProductClass = std::tuple<int, bool, int, int>;

/// Checks that a column has the same bits in all batches of a class, with any neighbours. Returns the number of
/// classes.
size_t check_classes(const BuildBatch& build, const Options& options,
                     const std::function<ProductClass(const Tensor&)>& class_of) {
  std::vector<Batch> batches = batches_of(options.few);
  for (const int64_t count : {1, 2, 5, 8, 9, 20}) {
    for (const int64_t first : {0, 7, 33}) batches.push_back({first, count});
  }
  const BatchRun run(build, batches, options);
  std::map<ProductClass, std::map<int64_t, Values>> columns;
  for (size_t i = 0; i < batches.size(); ++i) {
    const auto [first, count] = batches[i];
    auto& known = columns[class_of(run.node(i))];
    for (int64_t token = first; token < first + count; ++token) {
      const Values values = run.of(i, token);
      const bool same = same_bits(known.emplace(token, values).first->second, values);
      EXPECT_TRUE(same) << describe(run.node(i)) << ": column " << token << " of " << first << " to "
                        << first + count - 1;
      if (!same) return columns.size();
    }
  }
  return columns.size();
}

/// The classes of mul_mat: one column, two columns, three to eight columns, and each division into tiles.
size_t check_product(DType dtype, const cuda::GpuTraits& gpu) {
  const BuildBatch build = [=](Sources& s, const Batch& b) {
    return mul_mat(s.graph, s.shared("a", dtype, {512, 40, 1, 1}), s.rows("b", 512, b));
  };
  return check_classes(build, {.gpu = gpu, .few = dtype != DType::kQ8_0}, [&](const Tensor& node) -> ProductClass {
    if (node.shape[1] <= 8) return {static_cast<int>(std::min<int64_t>(node.shape[1], 3)), false, 0, 0};
    const cuda::TileChoice tiles = cuda::mul_mat_tiles_choice(node, gpu);
    return {9, tiles.warpgroups, tiles.columns, tiles.parts};
  });
}

TEST(CudaBatchInvariance, ProductsWithinAClass) {
  for (const DType dtype : weight_types()) {
    EXPECT_GE(check_product(dtype, hopper()), 4u) << name_of(dtype);
    check_product(dtype, ampere(2));
  }
}

/// The classes of mul_mat_id with four experts and two slots: one token, at most four pairs per expert, at most eight
/// pairs per expert, and more pairs, which use tiles. On a GPU with one multiprocessor, one warp computes a row.
TEST(CudaBatchInvariance, ProductsOfExpertsWithinAClass) {
  for (const DType dtype : {DType::kF16, DType::kQ8_0, DType::kQ4_K}) {
    const BuildBatch build = [=](Sources& s, const Batch& b) {
      Tensor* x = s.tokens("x", DType::kF32, {512, 1, kTokens, 1}, 2, b);
      return mul_mat_id(s.graph, s.shared("experts", dtype, {512, 40, 4, 1}), x,
                        s.tokens("ids", DType::kI32, {2, kTokens, 1, 1}, 1, b));
    };
    const auto fill = [](const Graph& graph, TensorValues& leaves) {
      set(graph, leaves, "ids", [](int64_t i) { return static_cast<double>(i * 7 % 5 % 4); });
    };
    const cuda::GpuTraits gpu = hopper(1);
    const size_t classes = check_classes(build, {.axis = 2, .gpu = gpu, .few = true, .fill = fill},
                                         [&](const Tensor& node) -> ProductClass {
                                           const int64_t tokens = node.shape[2];
                                           if (tokens <= 16)
                                             return {tokens == 1 ? 1 : tokens <= 8 ? 2 : 3, false, 0, 0};
                                           return {4, true, cuda::mul_mat_tiles_groups(node, gpu).columns, 1};
                                         });
    EXPECT_GE(classes, 4u) << name_of(dtype);
  }
}

}  // namespace
}  // namespace shoal::test
