#include "graph/memory_plan.h"

#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include <algorithm>
#include <random>

#include "base/error.h"
#include "graph/ops/ops.h"

namespace shoal {
namespace {

using testing::ElementsAre;
using testing::IsEmpty;

// --- helpers --------------------------------------------------------------------------------------------------

MemoryPlan plan_bytes(Graph& g, size_t alignment = 1) {
  MemoryPlanOptions options;
  options.alignment = alignment;
  return plan_memory(whole(g), options);
}

Tensor* vector_input(Graph& g, int64_t length, std::string name = "x") {
  return g.input(std::move(name), DType::kF32, {length, 1, 1, 1});
}

/// A node of `length` elements that reads x and cannot run in place.
Tensor* tile(Graph& g, Tensor* x, int64_t length) {
  return repeat(g, x, {length, 1, 1, 1});
}

size_t offset_of(const MemoryPlan& plan, const Tensor* tensor) {
  return plan.tensors.at(tensor).offset;
}

// Checks the plan's guarantees without using the planner's code. At each node, no two live tensors may share bytes. An
// in-place node is an exception, because the result of this node may overwrite a source.
constexpr size_t kMaxChunk = 1000;

class Validator {
 public:
  Validator(const GraphRange& range, const MemoryPlan& plan, size_t alignment)
      : range_(range), plan_(plan), alignment_(alignment), nodes_(range.graph->nodes()) {}

  void check_all() {
    for (const auto& [tensor, place] : plan_.tensors) check_bounds(place);
    for (const auto& [tensor, place] : plan_.workspaces) check_bounds(place);
    for (int step = range_.begin; step < range_.end; ++step) {
      check_step(step);
      if (testing::Test::HasFatalFailure()) return;
    }
  }

 private:
  struct Span {
    const Tensor* tensor;
    MemoryPlace place;
  };

  void check_bounds(const MemoryPlace& place) {
    ASSERT_LT(static_cast<size_t>(place.chunk), plan_.chunk_sizes.size());
    ASSERT_EQ(place.offset % alignment_, 0u);
    ASSERT_LE(place.offset + place.size, plan_.chunk_sizes[place.chunk]);
    // The planner rounds the size of a chunk up to a multiple of the alignment. If the rounded size exceeds the largest
    // allocation, the chunk ends at kMaxChunk or, if the last tensor ends later, at the end of this tensor.
    const size_t chunk = plan_.chunk_sizes[place.chunk];
    ASSERT_TRUE(chunk % alignment_ == 0 || chunk == content_end(place.chunk) || chunk == kMaxChunk) << chunk;
  }

  size_t content_end(int chunk) const {
    size_t end = 0;
    for (const auto* places : {&plan_.tensors, &plan_.workspaces}) {
      for (const auto& [tensor, place] : *places) {
        if (place.chunk == chunk) end = std::max(end, place.offset + place.size);
      }
    }
    return end;
  }

  /// Step of the last node that reads the tensor's bytes. For a leaf or an output, the result is the step after the
  /// last node.
  int last_reader(const Tensor* owner) const {
    if (owner->is_leaf() || owner->is_output) return range_.end;
    int last = owner->id;
    for (const Tensor* node : nodes_) {
      if (node->storage() == owner && node->is_output) return range_.end;
      for (const Tensor* source : node->src) {
        if (source && source->storage() == owner) last = std::max(last, node->id);
      }
    }
    return last;
  }

  void check_step(int step) {
    const Tensor* node = nodes_[step];
    std::vector<Span> alive;
    for (const auto& [tensor, place] : plan_.tensors) {
      const bool exists = tensor->is_leaf() || tensor->id <= step;
      if (exists && (tensor == node || last_reader(tensor) >= step)) alive.push_back({tensor, place});
    }
    if (const auto found = plan_.workspaces.find(node); found != plan_.workspaces.end()) {
      alive.push_back({nullptr, found->second});
    }
    for (size_t i = 0; i < alive.size(); ++i) {
      for (size_t j = i + 1; j < alive.size(); ++j) {
        if (!overlap(alive[i].place, alive[j].place)) continue;
        const bool in_place =
            is_in_place(*node, alive[i], alive[j], step) || is_in_place(*node, alive[j], alive[i], step);
        ASSERT_TRUE(in_place) << "at " << node->name << ": " << label(alive[i]) << " and " << label(alive[j]);
      }
    }
  }

  static std::string label(const Span& span) { return span.tensor ? span.tensor->name : "workspace"; }
  static bool overlap(const MemoryPlace& a, const MemoryPlace& b) {
    return a.chunk == b.chunk && a.offset < b.offset + b.size && b.offset < a.offset + a.size;
  }
  /// Whether `result` may overwrite `source`. The op must be able to overwrite this source, and `node` must be the last
  /// user of `source`. The source must also have the shape, the type and the address of the result.
  bool is_in_place(const Tensor& node, const Span& result, const Span& source, int step) const {
    if (result.tensor != &node || !source.tensor || last_reader(source.tensor) != step) return false;
    if (result.place.offset != source.place.offset) return false;
    bool found = false;
    for (size_t i = 0; i < node.src.size(); ++i) {
      const Tensor* x = node.src[i];
      if (!x || x->storage() != source.tensor) continue;
      const bool same = x->shape == node.shape && x->dtype == node.dtype && x->is_contiguous() && x->view_offset == 0;
      if (!same || !(info(node.op).in_place_sources >> i & 1)) return false;
      found = true;
    }
    return found;
  }

  const GraphRange& range_;
  const MemoryPlan& plan_;
  size_t alignment_;
  std::span<Tensor* const> nodes_;
};

// --- exact small cases ----------------------------------------------------------------------------------------

TEST(MemoryPlan, MatchesTheHeaderExample) {
  Graph g;
  Tensor* x = vector_input(g, 25);
  Tensor* a = tile(g, slice(g, x, {0, 0, 10}), 10);
  Tensor* b = tile(g, a, 10);
  Tensor* c = g.output(tile(g, b, 10));
  const MemoryPlan plan = plan_bytes(g);
  EXPECT_EQ(offset_of(plan, x), 0u);
  EXPECT_EQ(offset_of(plan, a), 100u);
  EXPECT_EQ(offset_of(plan, b), 140u);
  EXPECT_EQ(offset_of(plan, c), 100u);
  EXPECT_THAT(plan.chunk_sizes, ElementsAre(180u));
  EXPECT_EQ(plan.total_bytes(), 180u);
  EXPECT_EQ(plan.tensors.size(), 4u);
  EXPECT_THAT(plan.workspaces, IsEmpty());
}

TEST(MemoryPlan, EmptyGraphNeedsNoMemory) {
  Graph g;
  const MemoryPlan plan = plan_bytes(g);
  EXPECT_THAT(plan.chunk_sizes, IsEmpty());
  EXPECT_EQ(plan.total_bytes(), 0u);
}

TEST(MemoryPlan, ElementWiseChainRunsInPlace) {
  Graph g;
  Tensor* x = vector_input(g, 10);
  Tensor* y = add(g, x, x);
  Tensor* first = y;
  for (int i = 0; i < 5; ++i) y = scale(g, unary(g, y, UnaryKind::kSilu), {});
  g.output(y);
  const MemoryPlan plan = plan_bytes(g);
  EXPECT_EQ(plan.total_bytes(), 80u);
  EXPECT_EQ(offset_of(plan, y), offset_of(plan, first));
}

TEST(MemoryPlan, InputsOutputsAndWeightsAreNotOverwritten) {
  Graph g;
  TensorContext weights;
  Tensor* w = weights.add("w", DType::kF32, {10, 1, 1, 1});
  Tensor* x = vector_input(g, 10);
  Tensor* a = g.output(scale(g, x, {}));
  Tensor* b = scale(g, a, {});
  Tensor* c = add(g, w, w);
  g.output(add(g, b, c));
  const MemoryPlan plan = plan_bytes(g);
  EXPECT_NE(offset_of(plan, a), offset_of(plan, x));
  EXPECT_NE(offset_of(plan, b), offset_of(plan, a));
  EXPECT_FALSE(plan.tensors.contains(w));
  // The tensors x, a and c have separate memory. The result overwrites b.
  EXPECT_EQ(plan.total_bytes(), 160u);
}

TEST(MemoryPlan, SourceUsedLaterIsNotOverwritten) {
  Graph g;
  Tensor* a = tile(g, vector_input(g, 10), 10);
  Tensor* b = scale(g, a, {});
  g.output(add(g, b, a));
  const MemoryPlan plan = plan_bytes(g);
  EXPECT_NE(offset_of(plan, a), offset_of(plan, b));
  EXPECT_EQ(plan.total_bytes(), 120u);
}

TEST(MemoryPlan, SecondSourceCanBeOverwritten) {
  Graph g;
  Tensor* x = vector_input(g, 10);
  Tensor* a = tile(g, x, 10);
  Tensor* y = g.output(sub(g, x, a));
  EXPECT_EQ(offset_of(plan_bytes(g), y), offset_of(plan_bytes(g), a));
}

TEST(MemoryPlan, BroadcastSourceIsNotOverwritten) {
  Graph g;
  Tensor* x = vector_input(g, 10);
  Tensor* one = sum_rows(g, x);
  Tensor* y = g.output(add(g, one, x));
  EXPECT_NE(offset_of(plan_bytes(g), y), offset_of(plan_bytes(g), one));
}

TEST(MemoryPlan, SourceUsedTwiceCanBeOverwritten) {
  Graph g;
  Tensor* a = tile(g, vector_input(g, 10), 10);
  Tensor* y = g.output(mul(g, a, a));
  EXPECT_EQ(offset_of(plan_bytes(g), y), offset_of(plan_bytes(g), a));
}

TEST(MemoryPlan, SourceReadInTwoOrdersIsNotOverwritten) {
  Graph g;
  Tensor* x = g.input("x", DType::kF32, {4, 4, 1, 1});
  Tensor* a = repeat(g, x, {4, 4, 1, 1});
  Tensor* y = g.output(add(g, a, transpose(g, a)));
  EXPECT_NE(offset_of(plan_bytes(g), y), offset_of(plan_bytes(g), a));
}

TEST(MemoryPlan, SourceUsedAsMaskIsNotOverwritten) {
  Graph g;
  Tensor* a = repeat(g, g.input("x", DType::kF32, {4, 4, 1, 1}), {4, 4, 1, 1});
  Tensor* y = g.output(soft_max(g, a, a, nullptr, {}));
  EXPECT_NE(offset_of(plan_bytes(g), y), offset_of(plan_bytes(g), a));
}

TEST(MemoryPlan, ViewOfAllBytesCanBeOverwritten) {
  Graph g;
  Tensor* a = tile(g, vector_input(g, 12), 12);
  Tensor* y = g.output(scale(g, reshape(g, a, {3, 4, 1, 1}), {}));
  EXPECT_EQ(offset_of(plan_bytes(g), y), offset_of(plan_bytes(g), a));
}

TEST(MemoryPlan, ViewOfSomeBytesIsNotOverwritten) {
  Graph g;
  Tensor* a = tile(g, vector_input(g, 12), 12);
  Tensor* head = g.output(scale(g, slice(g, a, {0, 0, 6}), {}));
  EXPECT_NE(offset_of(plan_bytes(g), head), offset_of(plan_bytes(g), a));
  Graph h;
  Tensor* b = repeat(h, h.input("x", DType::kF32, {4, 4, 1, 1}), {4, 4, 1, 1});
  Tensor* y = h.output(scale(h, transpose(h, b), {}));
  EXPECT_NE(offset_of(plan_bytes(h), y), offset_of(plan_bytes(h), b));
}

TEST(MemoryPlan, ViewOfAViewKeepsItsBaseAlive) {
  Graph g;
  Tensor* x = vector_input(g, 10);
  Tensor* a = tile(g, x, 10);
  Tensor* view = slice(g, reshape(g, a, {5, 2, 1, 1}), {1, 1, 1});
  Tensor* b = tile(g, x, 10);
  Tensor* c = sum_rows(g, b);
  g.output(add(g, c, tile(g, view, 5)));
  const MemoryPlan plan = plan_bytes(g);
  EXPECT_NE(offset_of(plan, b), offset_of(plan, a));
  EXPECT_FALSE(plan.tensors.contains(view));
}

TEST(MemoryPlan, OutputViewKeepsItsBaseAlive) {
  Graph g;
  Tensor* x = vector_input(g, 10);
  Tensor* a = tile(g, x, 10);
  g.output(slice(g, a, {0, 2, 3}));
  Tensor* b = scale(g, a, {});
  Tensor* c = g.output(tile(g, b, 10));
  const MemoryPlan plan = plan_bytes(g);
  EXPECT_NE(offset_of(plan, a), offset_of(plan, b));
  EXPECT_NE(offset_of(plan, a), offset_of(plan, c));
  EXPECT_EQ(plan.total_bytes(), 160u);
}

TEST(MemoryPlan, LargestTensorIsNotRoundedPastTheLimit) {
  Graph g;
  Tensor* x = vector_input(g, 10, "x");  // `x` has 40 bytes
  g.output(sum_rows(g, x));
  MemoryPlanOptions options;
  options.alignment = 64;
  options.max_chunk = 40;
  const MemoryPlan plan = plan_memory(whole(g), options);
  EXPECT_THAT(plan.chunk_sizes, testing::Each(40u));
}

TEST(MemoryPlan, FusedNodesKeepTheirSourcesAlive) {
  Graph g;
  Tensor* a = transpose(g, g.input("x", DType::kF32, {4, 8, 1, 1}));
  Tensor* made[5];  // only the node made[3] can run in place
  for (int i = 0; i < 5; ++i) a = made[i] = i == 3 ? unary(g, a, UnaryKind::kSilu) : contiguous(g, transpose(g, a));
  g.output(made[4]);
  const auto overlap = [&](std::vector<NodeRange> fused, int one, int other) {
    MemoryPlanOptions options;
    options.alignment = 1;
    options.fused = std::move(fused);
    const MemoryPlan plan = plan_memory(whole(g), options);
    return offset_of(plan, made[one]) == offset_of(plan, made[other]);
  };
  const auto at = [&](int i) { return made[i]->id; };
  EXPECT_TRUE(overlap({}, 0, 2));
  EXPECT_TRUE(overlap({{at(0), at(1) + 1}, {at(3), at(4)}}, 0, 2)) << "made[2] is outside the fused range of made[0]";
  const std::vector<NodeRange> four{{at(0), at(3) + 1}};
  EXPECT_FALSE(overlap(four, 0, 2));
  EXPECT_FALSE(overlap(four, 1, 3));
  EXPECT_TRUE(overlap(four, 2, 3)) << "made[3] runs in place";
  EXPECT_TRUE(overlap(four, 0, 4) || overlap(four, 1, 4)) << "made[4] is outside the fused range";
}

TEST(MemoryPlan, SetRowsNeedsNoMemory) {
  Graph g;
  TensorContext weights;
  Tensor* cache = weights.add("c", DType::kF32, {10, 64, 1, 1}, Role::kCache);
  Tensor* rows = vector_input(g, 10, "rows");
  Tensor* ids = g.input("ids", DType::kI32, {1, 1, 1, 1});
  Tensor* stored = set_rows(g, cache, rows, ids);
  g.output(sum_rows(g, slice(g, stored, {1, 0, 8})));
  const MemoryPlan plan = plan_bytes(g);
  EXPECT_FALSE(plan.tensors.contains(stored));
  EXPECT_FALSE(plan.tensors.contains(cache));
  EXPECT_EQ(plan.total_bytes(), 40u + 4u + 32u);
}

TEST(MemoryPlan, ZeroSizeTensorsArePlaced) {
  Graph g;
  Tensor* x = g.input("x", DType::kF32, {4, 0, 1, 1});
  Tensor* y = g.output(scale(g, x, {}));
  const MemoryPlan plan = plan_bytes(g, 64);
  EXPECT_THAT(plan.chunk_sizes, ElementsAre(0u));
  EXPECT_EQ(plan.tensors.at(x).size, 0u);
  EXPECT_EQ(plan.tensors.at(y).chunk, 0);
}

TEST(MemoryPlan, MemoryOfUnreadNodesIsReusedImmediately) {
  Graph g;
  Tensor* x = vector_input(g, 10);
  Tensor* dead = tile(g, x, 10);
  Tensor* y = g.output(tile(g, x, 10));
  EXPECT_EQ(offset_of(plan_bytes(g), dead), offset_of(plan_bytes(g), y));
}

TEST(MemoryPlan, WorkspacesLiveOnlyDuringTheirNode) {
  Graph g;
  Tensor* x = vector_input(g, 10);
  Tensor* a = tile(g, x, 10);
  Tensor* b = g.output(tile(g, a, 10));
  MemoryPlanOptions options;
  options.alignment = 1;
  options.workspace_size = [&](const Tensor& node) -> size_t { return &node == a ? 100 : &node == b ? 60 : 0; };
  const MemoryPlan plan = plan_memory(whole(g), options);
  ASSERT_EQ(plan.workspaces.size(), 2u);
  EXPECT_EQ(plan.workspaces.at(a).size, 100u);
  // `x` and `a` have 40 bytes each, and the workspace of `a` has 100 bytes. Later, `b` (40 bytes) and the workspace of
  // `b` (60 bytes) reuse these 100 bytes.
  EXPECT_EQ(plan.total_bytes(), 180u);
}

TEST(MemoryPlan, AllocSizeIsUsedAndRoundedUp) {
  Graph g;
  Tensor* x = vector_input(g, 3);
  Tensor* y = g.output(tile(g, x, 3));
  MemoryPlanOptions options;
  options.alignment = 32;
  options.alloc_size = [](const Tensor& tensor) { return tensor.bytes() + 30; };
  const MemoryPlan plan = plan_memory(whole(g), options);
  EXPECT_EQ(plan.tensors.at(x).size, 42u);
  EXPECT_EQ(offset_of(plan, y), 64u);
  EXPECT_EQ(plan.total_bytes(), 128u);
}

TEST(MemoryPlan, ChunksExceedMaximumSizeOnlyForLargeTensors) {
  Graph g;
  std::vector<Tensor*> inputs;
  for (const int64_t length : {10, 10, 10, 10, 50}) inputs.push_back(vector_input(g, length, {}));
  g.output(concat(g, inputs, 0));  // the result has 360 bytes, more than max_chunk
  MemoryPlanOptions options;
  options.alignment = 4;
  options.max_chunk = 100;
  const MemoryPlan plan = plan_memory(whole(g), options);
  EXPECT_THAT(plan.chunk_sizes, ElementsAre(360u, 200u, 80u, 80u));
  EXPECT_EQ(plan.total_bytes(), 720u);
  Validator(whole(g), plan, 4).check_all();
}

TEST(MemoryPlan, OversizedTensorsShareAChunk) {
  Graph g;
  Tensor* large = tile(g, vector_input(g, 10), 100);
  Tensor* later = tile(g, sum_rows(g, large), 90);
  g.output(sum_rows(g, later));
  MemoryPlanOptions options;
  options.alignment = 4;
  options.max_chunk = 100;
  const MemoryPlan plan = plan_memory(whole(g), options);
  EXPECT_EQ(plan.tensors.at(large).chunk, plan.tensors.at(later).chunk);
  EXPECT_THAT(plan.chunk_sizes, ElementsAre(400u, 44u));
}

TEST(MemoryPlan, PlanOfRangeHasOnlyTensorsOfRange) {
  Graph g;
  Tensor* x = vector_input(g, 10, "x");
  Tensor* other = vector_input(g, 10, "other");
  Tensor* a = tile(g, x, 10);
  Tensor* b = scale(g, a, {});
  Tensor* c = scale(g, b, {});
  Tensor* d = scale(g, c, {});
  g.output(add(g, d, b));
  MemoryPlanOptions options;
  options.alignment = 1;
  const GraphRange middle{&g, 1, 3};
  const MemoryPlan plan = plan_memory(middle, options);
  // `a` is computed before the range. `b` and `c` are read after the range, so `c` must not overwrite `b`.
  EXPECT_EQ(plan.tensors.size(), 2u);
  EXPECT_TRUE(plan.tensors.contains(b));
  EXPECT_TRUE(plan.tensors.contains(c));
  EXPECT_EQ(plan.total_bytes(), 80u);
  // A range places only the inputs that it reads.
  const MemoryPlan first = plan_memory(GraphRange{&g, 0, 1}, options);
  EXPECT_TRUE(first.tensors.contains(x));
  EXPECT_FALSE(first.tensors.contains(other));
  EXPECT_TRUE(plan_bytes(g).tensors.contains(other));
}

TEST(MemoryPlan, TensorsWithABufferAreNotPlaced) {
  Graph g;
  Tensor* x = vector_input(g, 10);
  Tensor* a = tile(g, x, 10);
  Tensor* b = g.output(scale(g, a, {}));
  // The planner never accesses the buffer.
  Buffer* const somewhere = reinterpret_cast<Buffer*>(&g);
  x->buffer = somewhere;
  a->buffer = somewhere;
  EXPECT_FALSE(needs_placement(*a));
  const MemoryPlan plan = plan_bytes(g);
  EXPECT_EQ(plan.tensors.size(), 1u);
  EXPECT_EQ(offset_of(plan, b), 0u);
  EXPECT_EQ(plan.total_bytes(), 40u);
}

TEST(MemoryPlan, RefusesBadArguments) {
  Graph g;
  MemoryPlanOptions options;
  EXPECT_THAT([&] { plan_memory(GraphRange{&g, 0, 1}, options); }, testing::Throws<InvalidArgument>());
  EXPECT_THAT([&] { plan_memory(GraphRange{}, options); }, testing::Throws<InvalidArgument>());
  options.alignment = 0;
  EXPECT_THAT([&] { plan_memory(whole(g), options); }, testing::Throws<InvalidArgument>());
}

// --- random graphs --------------------------------------------------------------------------------------------

/// Builds a random graph of tensors with shape [a, b]. Some tensors are views, some are empty, and some are outputs.
class RandomGraph {
 public:
  explicit RandomGraph(uint32_t seed) : random_(seed) {
    cache_ = weights_.add("cache", DType::kF32, {4, 6, 1, 1}, Role::kCache);
    ids_ = graph.input("ids", DType::kI32, {6, 1, 1, 1});
    pool_ = {graph.input("x", DType::kF32, {4, 6, 1, 1}), graph.input("e", DType::kF32, {4, 0, 1, 1})};
    const int count = 5 + below(60);
    for (int i = 0; i < count; ++i) grow();
    graph.output(pool_.back());
  }

  Graph graph;

 private:
  int below(int limit) { return static_cast<int>(random_() % limit); }

  void grow() {
    // Recent tensors are chosen more often than older tensors.
    Tensor* x = pool_[pool_.size() - 1 - below(std::min<int>(pool_.size(), below(8) + 1))];
    Tensor* y = pool_[below(pool_.size())];
    Tensor* made = make(x, y->shape == x->shape ? y : x);
    if (below(8) == 0) graph.output(made);
    pool_.push_back(made);
  }

  Tensor* make(Tensor* x, Tensor* y) {
    switch (below(12)) {
      case 0:
        return add(graph, x, y);
      case 1:
        return mul(graph, y, x);
      case 2:
        return scale(graph, x, {2.0f, 1.0f});
      case 3:
        return rms_norm(graph, x, {});
      case 4:
        return repeat(graph, x, {x->shape[0], x->shape[1] * (1 + below(3)), x->shape[2], 1});
      case 5:
        return transpose(graph, x);
      case 6:
        return add(graph, x, permute(graph, contiguous(graph, x), {0, 1, 3, 2}));
      case 7:
        return slice(graph, x, {1, x->shape[1] / 3, x->shape[1] / 2});
      case 8:
        return x->is_contiguous() ? reshape(graph, x, {x->shape[1], x->shape[0], 1, 1}) : contiguous(graph, x);
      case 9:
        if (x->shape != cache_->shape || std::exchange(written_, true)) return sum_rows(graph, x);
        return set_rows(graph, cache_, x, ids_);
      case 10:
        return soft_max(graph, x, y, nullptr, {});
      default:
        return sub(graph, y, x);
    }
  }

  std::mt19937 random_;
  TensorContext weights_;
  Tensor* cache_;
  bool written_ = false;
  Tensor* ids_;
  std::vector<Tensor*> pool_;
};

TEST(MemoryPlanProperty, NoTwoLiveTensorsOverlap) {
  size_t planned = 0, unshared = 0;
  for (uint32_t seed = 0; seed < 400; ++seed) {
    SCOPED_TRACE(seed);
    RandomGraph random(seed);
    const size_t alignment = seed % 3 == 0 ? 1 : 64;
    MemoryPlanOptions options;
    options.alignment = alignment;
    options.max_chunk = seed % 2 ? kMaxChunk : options.max_chunk;
    options.workspace_size = [](const Tensor& node) { return static_cast<size_t>(node.id % 3 * 100); };
    const MemoryPlan plan = plan_memory(whole(random.graph), options);
    Validator(whole(random.graph), plan, alignment).check_all();
    ASSERT_FALSE(HasFatalFailure());
    for (const Tensor* node : random.graph.nodes()) {
      ASSERT_EQ(plan.tensors.contains(node), !node->is_view()) << node->name;
      ASSERT_EQ(plan.workspaces.contains(node), node->id % 3 != 0 && !is_view(node->op)) << node->name;
    }
    planned += plan.total_bytes();
    for (const auto& [tensor, place] : plan.tensors) unshared += place.size;
  }
  EXPECT_LT(planned, unshared);
}

TEST(MemoryPlanProperty, PlansOfConsecutiveRangesAreValid) {
  for (uint32_t seed = 0; seed < 50; ++seed) {
    SCOPED_TRACE(seed);
    RandomGraph random(seed);
    const int count = static_cast<int>(random.graph.nodes().size());
    MemoryPlanOptions options;
    options.alignment = 1;
    for (int begin = 0; begin < count; begin += 7) {
      const GraphRange range{&random.graph, begin, std::min(begin + 7, count)};
      const MemoryPlan plan = plan_memory(range, options);
      Validator(range, plan, 1).check_all();
      ASSERT_FALSE(HasFatalFailure());
    }
  }
}

}  // namespace
}  // namespace shoal
