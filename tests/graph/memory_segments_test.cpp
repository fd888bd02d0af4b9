// Tests of memory plans for graphs that run in segments. The tests simulate a run step by step and track the last
// writer of every byte.
#include <gtest/gtest.h>

#include <algorithm>
#include <map>
#include <random>

#include "base/error.h"
#include "graph/memory_plan.h"
#include "graph/ops/ops.h"

namespace shoal {
namespace {

class Play {
 public:
  Play(Graph& graph, const MemoryPlanOptions& options)
      : graph_(graph), options_(options), plan_(plan_memory(whole(graph), options)) {
    for (const size_t size : plan_.chunk_sizes) owners_.emplace_back(size, nullptr);
  }

  void run() {
    for (const Tensor* input : graph_.inputs()) {
      if (!is_late(*input)) write(*input);
    }
    const int segments = static_cast<int>(options_.cuts.size()) + 1;
    write_late(0);
    for (int segment = 0; segment < segments; ++segment) {
      for (const Tensor* node : graph_.nodes()) {
        if (segment_of(node->id) == segment) step(*node);
      }
      write_late(segment + 1);
      for (const Tensor* node : options_.shown) {
        if (segment_of(node->id) == segment) expect_owned(*node, "is shown");
      }
    }
    for (const Tensor* node : graph_.nodes()) {
      if (node->is_output) expect_owned(*node, "is an output");
    }
    for (const Tensor* input : graph_.inputs()) {
      if (input->is_output) expect_owned(*input, "is an input and an output");
      if (!is_late(*input)) expect_owned(*input, "is an input that is written only once");
    }
  }

  const MemoryPlan& plan() const { return plan_; }

 private:
  int segment_of(int node) const {
    return static_cast<int>(std::upper_bound(options_.cuts.begin(), options_.cuts.end(), node) - options_.cuts.begin());
  }
  bool is_late(const Tensor& input) const {
    return std::any_of(options_.late.begin(), options_.late.end(),
                       [&](const LateInput& late) { return late.input == &input; });
  }
  void write_late(int segment) {
    for (const LateInput& late : options_.late) {
      if (late.segment == segment) write(*late.input);
    }
  }
  void step(const Tensor& node) {
    for (const Tensor* source : node.src) expect_owned(*source, "is read by " + node.name);
    if (!node.is_view()) write(node);
    if (const auto found = plan_.workspaces.find(&node); found != plan_.workspaces.end()) {
      fill(found->second, &scratch_);
      expect_owned(node, "was made with a workspace");
      for (const Tensor* source : node.src) {
        if (plan_.tensors.at(source->storage()).offset == plan_.tensors.at(node.storage()).offset) continue;
        expect_owned(*source, "is read after scratch memory was written");
      }
    }
  }
  void write(const Tensor& tensor) { fill(plan_.tensors.at(&tensor), &tensor); }
  void fill(const MemoryPlace& place, const Tensor* owner) {
    auto& bytes = owners_.at(static_cast<size_t>(place.chunk));
    std::fill_n(bytes.begin() + static_cast<ptrdiff_t>(place.offset), place.size, owner);
  }
  void expect_owned(const Tensor& tensor, const std::string& why) const {
    const Tensor* owner = tensor.storage();
    const MemoryPlace& place = plan_.tensors.at(owner);
    const auto begin = owners_.at(static_cast<size_t>(place.chunk)).begin() + static_cast<ptrdiff_t>(place.offset);
    const bool whole = std::all_of(begin, begin + static_cast<ptrdiff_t>(place.size),
                                   [&](const Tensor* writer) { return writer == owner; });
    ASSERT_TRUE(whole) << tensor.name << " " << why << ", but was overwritten";
  }

  Graph& graph_;
  const MemoryPlanOptions& options_;
  MemoryPlan plan_;
  std::vector<std::vector<const Tensor*>> owners_;
  const Tensor scratch_;
};

struct RandomSegments {
  explicit RandomSegments(uint64_t seed) : rng(seed) {
    const int inputs = 1 + pick(5);
    for (int i = 0; i < inputs; ++i) {
      Tensor* input = graph.input("in" + std::to_string(i), DType::kF32, {4 << pick(3), 1, 1, 1});
      values.push_back(input);
    }
    const int nodes = 5 + pick(40);
    for (int i = 0; i < nodes; ++i) values.push_back(node("n" + std::to_string(i)));
    const int rate = 1 + pick(8);
    for (const Tensor* made : graph.nodes()) {
      if (made->id > 0 && pick(rate) == 0) options.cuts.push_back(made->id);
      if (pick(4) == 0) options.shown.push_back(made);
    }
    for (Tensor* input : graph.inputs()) {
      if (pick(2) == 0) options.late.push_back({input, pick(latest_segment(*input) + 1)});
      if (pick(4) == 0) graph.output(input);  // an addend of a sum may also be an output
    }
    graph.output(graph.nodes().back());
    options.alignment = pick(2) == 0 ? 1 : 64;
    if (pick(2) == 0) options.max_chunk = 256;
    if (pick(2) == 0) {
      options.workspace_size = [](const Tensor& made) { return made.op == Op::kAdd ? size_t{24} : size_t{0}; };
    }
  }
  /// Returns the last segment before which the caller may write the input. The result is the first segment that uses
  /// the input, or the last segment of the graph if no node uses the input.
  int latest_segment(const Tensor& input) const {
    for (const Tensor* node : graph.nodes()) {
      if (std::find(node->src.begin(), node->src.end(), &input) == node->src.end()) continue;
      return static_cast<int>(std::upper_bound(options.cuts.begin(), options.cuts.end(), node->id) -
                              options.cuts.begin());
    }
    return static_cast<int>(options.cuts.size());
  }
  int pick(int n) { return static_cast<int>(rng() % static_cast<uint64_t>(n)); }
  Tensor* any() { return values[static_cast<size_t>(pick(static_cast<int>(values.size())))]; }
  Tensor* node(const std::string& name) {
    Tensor* x = pick(3) == 0 ? any() : values.back();
    switch (pick(5)) {
      case 0:
        return reshape(graph, x, {x->shape[1], x->shape[0], 1, 1}, name);
      case 1:
        return x->elements() < 64 ? concat(graph, {x, x}, 0, name) : scale(graph, x, {2, 0}, name);
      case 2:
        for (Tensor* other : values) {
          if (same_shape(*x, *other) && pick(2) == 0) return add(graph, x, other, name);
        }
        return scale(graph, x, {2, 0}, name);
      default:
        return scale(graph, x, {2, 0}, name);
    }
  }
  std::mt19937_64 rng;
  Graph graph;
  std::vector<Tensor*> values;
  MemoryPlanOptions options;
};

TEST(MemorySegments, NothingIsOverwrittenBeforeItIsRead) {
  for (uint64_t seed = 0; seed < 3000; ++seed) {
    SCOPED_TRACE(seed);
    RandomSegments random(seed);
    Play(random.graph, random.options).run();
    if (testing::Test::HasFailure()) return;
  }
}

/// The chain x -> a -> b -> c -> d. The node d also reads the input `late`, which the caller may write between
/// segments.
struct SegmentedChain : testing::Test {
  SegmentedChain() {
    x = graph.input("x", DType::kF32, {16, 1, 1, 1});
    late = graph.input("late", DType::kF32, {16, 1, 1, 1});
    a = concat(graph, {x, x}, 0, "a");
    b = scale(graph, a, {2, 0}, "b");
    c = scale(graph, slice(graph, b, {0, 0, 16}), {2, 0}, "c");
    d = graph.output(add(graph, c, late, "d"));
    options.alignment = 1;
  }
  size_t bytes() { return plan_memory(whole(graph), options).total_bytes(); }
  Graph graph;
  Tensor *x, *late, *a, *b, *c, *d;
  MemoryPlanOptions options;
};

TEST_F(SegmentedChain, LateInputNeedsMemoryOnlyAfterItsWrite) {
  // The tensors x, c and `late` have 64 bytes each. The tensors a and b share 128 bytes, and d reuses memory of an
  // earlier node. An input that is written before the run is live during the whole run.
  EXPECT_EQ(bytes(), 64u + 128 + 64 + 64);
  options.cuts = {4};  // the cut is before d, and d does not read a or b
  EXPECT_EQ(bytes(), 64u + 128 + 64 + 64);
  options.late = {{late, 0}};
  EXPECT_EQ(bytes(), 64u + 128 + 64 + 64)
      << "the input is written early, although only the last segment reads the input";
  Play(graph, options).run();
  options.late = {{late, 1}};
  EXPECT_EQ(bytes(), 64u + 128 + 64);
  EXPECT_EQ(plan_memory(whole(graph), options).tensors.at(late).first_step, 4);
  Play(graph, options).run();
}

TEST_F(SegmentedChain, RefusesLateInputReadBeforeItsWrite) {
  options.cuts = {1, 4};
  options.late = {{x, 1}};
  try {
    plan_memory(whole(graph), options);
    FAIL() << "a reads x in the first segment";
  } catch (const InvalidArgument& error) {
    EXPECT_STREQ(error.what(), "[concat a] node 0 reads late input x, but the input is written at node 1");
  }
}

TEST_F(SegmentedChain, NodeReadAtCutIsNotOverwrittenBeforeCut) {
  options.cuts = {4};
  options.late = {{late, 1}};
  options.shown = {a};
  EXPECT_EQ(bytes(), 64u + 128 + 128 + 64) << "b must not overwrite a";
  Play(graph, options).run();
  options.cuts = {1, 4};
  options.late = {{late, 2}};
  EXPECT_EQ(bytes(), 64u + 128 + 64) << "a may be overwritten after the first cut";
  Play(graph, options).run();
}

TEST_F(SegmentedChain, UnusedLateInputHasMemory) {
  Tensor* unused = graph.input("unused", DType::kF32, {16, 1, 1, 1});
  options.cuts = {4};
  options.late = {{unused, 1}};
  EXPECT_TRUE(plan_memory(whole(graph), options).tensors.contains(unused));
  Play(graph, options).run();
}

TEST_F(SegmentedChain, RangePlacesOnlyInputsOfItsNodes) {
  const MemoryPlan first = plan_memory({&graph, 0, 4}, options);
  EXPECT_FALSE(first.tensors.contains(late)) << "only the range that uses the input places the input";
  const MemoryPlan last = plan_memory({&graph, 4, 5}, options);
  EXPECT_TRUE(last.tensors.contains(late));
}

}  // namespace
}  // namespace shoal
