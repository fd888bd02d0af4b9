#include "devices/plan_cache.h"

#include <gmock/gmock.h>

#include "base/error.h"
#include "devices/backend.h"
#include "graph/ops/ops.h"
#include "tests/meta/llama_graph.h"
#include "tests/meta/mesh.h"

namespace shoal {
namespace {

/// Tests that run on a simple device and on a meta device.
struct PlanCacheRuns : testing::TestWithParam<bool> {
  Device& device() { return GetParam() ? *mesh.device : mesh.other(); }
  std::unique_ptr<Backend> init() { return device().init(GetParam() ? "" : "threads=1"); }

  test::CpuMesh mesh{2, test::llama_layouts({3, 1})};
};

/// y = factor * x on 4 elements.
struct Scaled {
  explicit Scaled(float factor) : factor(factor) {
    x = graph->input("x", DType::kF32, {4, 1, 1, 1});
    y = graph->output(scale(*graph, x, {factor, 0}, "y"));
  }
  void run_on(Backend& backend) {
    GraphPlan& plan = backend.plans().plan(*graph);
    const std::vector<float> values{1, 2, 3, 4};
    tensor_set(*x, values.data(), 0, 16);
    backend.compute_async(plan);
    backend.synchronize();
    EXPECT_EQ(test::read_floats(*y), (std::vector<float>{factor, 2 * factor, 3 * factor, 4 * factor}));
  }
  float factor;
  std::unique_ptr<Graph> graph = std::make_unique<Graph>("scaled");
  Tensor *x, *y;
};

TEST_P(PlanCacheRuns, MakeOnePlanPerGraph) {
  const auto backend = init();
  PlanCache& cache = backend->plans();
  Scaled a(2), b(3);
  for (int i = 0; i < 5; ++i) {
    a.run_on(*backend);
    b.run_on(*backend);
  }
  EXPECT_EQ(cache.made(), 2u);
  EXPECT_EQ(cache.size(), 2u);
  EXPECT_EQ(&cache.plan(*a.graph), &cache.plan(*a.graph));
  EXPECT_EQ(backend->compute(*a.graph), Status::kSuccess);
  EXPECT_EQ(cache.made(), 2u);
}

TEST_P(PlanCacheRuns, ReplanAfterWeightsArePlacedAgain) {
  const auto backend = init();
  TensorContext context;
  Tensor* w = context.add("wq", DType::kF32, {32, 64, 1, 1});
  Graph graph("weighted");
  Tensor* x = graph.input("x", DType::kF32, {32, 1, 1, 1});
  Tensor* y = graph.output(sum_rows(graph, mul_mat(graph, slice(graph, w, {1, 8, 8}), x)));
  const std::vector<float> ones(32 * 64, 1.0f), twos(32 * 64, 2.0f);
  std::unique_ptr<Buffer> memory[2];
  for (int round = 0; round < 2; ++round) {
    memory[round] = allocate_tensors({&w, 1}, device().buffer_type(), Usage::kWeights);
    const std::vector<float>& values = round == 0 ? ones : twos;
    tensor_set(*w, values.data(), 0, values.size() * 4);
    GraphPlan& plan = backend->plans().plan(graph);
    tensor_set(*x, ones.data(), 0, 128);
    backend->compute_async(plan);
    backend->synchronize();
    EXPECT_EQ(test::read_floats(*y), std::vector<float>{round == 0 ? 256.0f : 512.0f});
    EXPECT_EQ(backend->plans().made(), static_cast<uint64_t>(round + 1));
    if (round == 0) memory[0]->reset(), w->buffer = nullptr, w->data = nullptr;
  }
  backend->plans().clear();
}

TEST_P(PlanCacheRuns, EvictLeastRecentlyUsedPlan) {
  const auto backend = init();
  PlanCache cache(*backend, 2);
  Scaled a(1), b(2), c(3);
  cache.plan(*a.graph);
  cache.plan(*b.graph);
  cache.plan(*a.graph);  // `b` is now the least recently used graph
  cache.plan(*c.graph);
  EXPECT_EQ(cache.size(), 2u);
  EXPECT_EQ(cache.made(), 3u);
  cache.plan(*a.graph);
  cache.plan(*c.graph);
  EXPECT_EQ(cache.made(), 3u);
  EXPECT_EQ(b.y->buffer, nullptr) << "the evicted plan freed the memory";
  cache.plan(*b.graph);
  EXPECT_EQ(cache.made(), 4u);
}

TEST_P(PlanCacheRuns, ReplanIfGraphsExceedCapacity) {
  const auto backend = init();
  std::vector<Scaled> graphs;
  for (int i = 1; i <= 20; ++i) graphs.emplace_back(static_cast<float>(i));
  for (int round = 0; round < 3; ++round) {
    for (Scaled& graph : graphs) graph.run_on(*backend);
  }
  EXPECT_EQ(backend->plans().size(), 16u);
  EXPECT_EQ(backend->plans().made(), 60u) << "each plan was evicted before its graph ran again";
}

TEST_P(PlanCacheRuns, DropPlansOfDestroyedGraphs) {
  const auto backend = init();
  const auto free = device().memory().free;
  for (int i = 0; i < 40; ++i) {
    Scaled graph(static_cast<float>(i));
    graph.run_on(*backend);
    EXPECT_LE(backend->plans().size(), 1u + (i > 0)) << "plans of destroyed graphs are dropped";
  }
  backend->plans().clear();
  EXPECT_EQ(backend->plans().size(), 0u);
  EXPECT_EQ(device().memory().free, free);
}

TEST_P(PlanCacheRuns, ReleaseMemoryOfDestroyedPlans) {
  const auto backend = init();
  Scaled graph(2);
  const auto free = device().memory().free;
  for (int i = 0; i < 3; ++i) {
    graph.run_on(*backend);
    backend->plans().clear();
    EXPECT_EQ(graph.x->buffer, nullptr);
    EXPECT_EQ(graph.y->buffer, nullptr);
    EXPECT_EQ(graph.y->data, nullptr);
    EXPECT_EQ(device().memory().free, free);
  }
  // Destroying the backend also frees the memory.
  {
    const auto another = init();
    graph.run_on(*another);
  }
  EXPECT_EQ(graph.y->buffer, nullptr);
}

TEST_P(PlanCacheRuns, KeepOtherPlansIfPlanningFails) {
  const auto backend = init();
  Scaled good(2);
  good.run_on(*backend);
  TensorContext weights;
  Graph bad("bad");
  bad.output(scale(bad, weights.add("nowhere", DType::kF32, {4, 1, 1, 1}), {2, 0}));
  EXPECT_THROW(backend->plans().plan(bad), InvalidArgument);
  EXPECT_EQ(backend->plans().made(), 1u);
  EXPECT_EQ(backend->plans().size(), 1u);
  good.run_on(*backend);
}

/// Weights that two contexts share. Each context has its own caches and graphs for 3, 2 and 1 tokens.
class TwoContexts {
 public:
  explicit TwoContexts(Device& device) {
    for (const char* context : {"_a", "_b"}) {
      for (int64_t tokens : {3, 2, 1}) {
        graphs_.push_back(std::make_unique<Graph>(fmt::format("llama{}{}", context, tokens)));
        parse_graph(test::llama_graph(tokens, {}, context), *graphs_.back(), weights_);
      }
    }
    memory_ = allocate_tensors(weights_.tensors(), device.buffer_type(), Usage::kWeights);
    for (Tensor* leaf : weights_.tensors()) write(*leaf, 1);
    for (int i = 0; i < 2; ++i) backends_.push_back(device.init("threads=1"));
  }

  /// Runs the graphs of the two contexts alternately and returns the outputs of all graphs.
  std::vector<std::vector<float>> round(uint64_t seed) {
    std::vector<std::vector<float>> outputs;
    for (size_t i : {0u, 3u, 1u, 4u, 2u, 5u}) {
      Backend& backend = *backends_[i / 3];
      Graph& graph = *graphs_[i];
      GraphPlan& plan = backend.plans().plan(graph);
      for (Tensor* input : graph.inputs()) write(*input, seed + i);
      backend.compute_async(plan);
      backend.synchronize();
      outputs.push_back(test::read_floats(*graph.find("logits")));
    }
    return outputs;
  }
  uint64_t made() const { return backends_[0]->plans().made() * 100 + backends_[1]->plans().made(); }

 private:
  static void write(Tensor& leaf, uint64_t seed) {
    const auto bytes = test::leaf_data(leaf, seed);
    tensor_set(leaf, bytes.data(), 0, bytes.size());
  }
  TensorContext weights_;
  std::unique_ptr<Buffer> memory_;
  std::vector<std::unique_ptr<Graph>> graphs_;
  std::vector<std::unique_ptr<Backend>> backends_;
};

TEST(PlanCache, TwoContextsShareWeightsAndPlanEachGraphOnce) {
  const test::CpuMesh mesh(2, test::llama_layouts({3, 1}));
  TwoContexts sharded(*mesh.device), whole(mesh.other());
  for (uint64_t seed = 1; seed < 8; ++seed) {
    const auto got = sharded.round(seed), expected = whole.round(seed);
    ASSERT_EQ(got.size(), expected.size());
    for (size_t i = 0; i < got.size(); ++i) {
      for (size_t j = 0; j < got[i].size(); ++j) EXPECT_NEAR(got[i][j], expected[i][j], 2e-3) << i << " " << j;
    }
    EXPECT_EQ(sharded.made(), 303u) << "three graphs each, planned in the first round";
  }
}

INSTANTIATE_TEST_SUITE_P(Devices, PlanCacheRuns, testing::Bool(),
                         [](const auto& info) { return info.param ? "Meta" : "Simple"; });

}  // namespace
}  // namespace shoal
