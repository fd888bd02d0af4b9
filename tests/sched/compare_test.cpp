#include "sched/compare.h"

#include <gmock/gmock.h>

#include "base/error.h"
#include "tests/meta/llama_graph.h"
#include "tests/sched/proxy.h"
#include "tests/sched/rig.h"

namespace shoal::sched {
namespace {

using test::Rig;
using test::World;

/// The nodes that the callback received, with their values on both backends.
struct Seen {
  std::vector<std::string> names;
  std::map<std::string, std::pair<test::Values, test::Values>> values;
  std::string last;

  CompareCallback callback() {
    return [this](const ComparedNode& node) {
      names.push_back(node.node.name);
      EXPECT_EQ(node.copy.name, node.node.name);
      const auto decoded = [&](std::span<const std::byte> bytes) {
        EXPECT_EQ(bytes.size(), node.node.bytes());
        return test::decode(node.node.dtype, {bytes.begin(), bytes.end()}, node.node.elements());
      };
      values[node.node.name] = {decoded(node.first), decoded(node.second)};
      return node.node.name != last;
    };
  }
};

struct Comparisons : testing::Test {
  Rig rig{5};
  std::unique_ptr<meta::MetaDevice> mesh = Rig::mesh({1, 2, 3}, test::llama_layouts({2, 0, 2}));
  std::unique_ptr<Backend> first = Rig::cpu(0).init(), second = mesh->init();
  World world{{{"*", &Rig::cpu(0)}}};
  LeafCopies leaves{*mesh};
  Seen seen;
};

TEST_F(Comparisons, ReportValuesOfEveryNodeOnBothBackends) {
  const std::string text = test::llama_graph(3);
  Graph& graph = world.add(text);
  Comparison comparison(*first, graph, *second, leaves);
  for (int run = 0; run < 2; ++run) {
    seen = {};
    world.fill_inputs(graph);
    ASSERT_TRUE(comparison.run(seen.callback()));
    const auto expected = test::on_one(text, Rig::cpu(4), 1, true);
    std::vector<std::string> names;
    for (const Tensor* node : graph.nodes()) {
      if (!is_view(node->op)) names.push_back(node->name);
    }
    EXPECT_EQ(seen.names, names);
    for (const auto& [name, values] : seen.values) {
      EXPECT_TRUE(test::close_to(values.first, expected.at(name), {0.0})) << name;
      EXPECT_TRUE(test::close_to(values.second, expected.at(name), {1e-9})) << name;
    }
  }
}

TEST_F(Comparisons, DoNotKeepMemoryForAllValues) {
  std::string text = "input %h0 f32 [1000, 4]\n";
  for (int i = 0; i < 20; ++i) text += fmt::format("%h{} = scale(%h{}) {{scale=2}}\n", i + 1, i);
  Graph &graph = world.add(text + "output %h20\n"), &same = world.add(text + "output %h20\n");
  const Comparison comparison(*first, graph, *second, leaves);
  GraphCopy all(same, leaves);
  for (Tensor* node : all.graph().nodes()) all.graph().output(node);
  const auto kept = second->create_plan(all.graph());
  EXPECT_GE(kept->allocated_bytes(), 3U * 21 * 16000);
  EXPECT_LT(comparison.second_plan().allocated_bytes(), 3U * 5 * 16000);
  EXPECT_LT(comparison.first_plan().allocated_bytes(), 5U * 16000);
}

TEST_F(Comparisons, CanBeLimitedToOneNode) {
  Graph& graph = world.add(test::llama_graph(3));
  for (const char* name : {"r", "q2", "q3", "logits"}) {
    LeafCopies own(*mesh);
    Comparison comparison(*first, graph, *second, own, only(*graph.find(name)));
    EXPECT_LE(comparison.first_plan().segments(), 2);
    world.fill_inputs(graph);
    world.fill_caches();
    seen = {};
    ASSERT_TRUE(comparison.run(seen.callback()));
    EXPECT_THAT(seen.names, testing::ElementsAre(name));
    EXPECT_TRUE(test::close_to(seen.values[name].second, seen.values[name].first, {1e-9})) << name;
    const auto expected = test::on_one(test::llama_graph(3), Rig::cpu(4), 1, true);
    EXPECT_TRUE(test::close_to(seen.values[name].first, expected.at(name), {0.0})) << name;
  }
}

TEST_F(Comparisons, StopWhenCallbackReturnsFalse) {
  Graph& graph = world.add(test::llama_graph(3));
  Comparison comparison(*first, graph, *second, leaves);
  world.fill_inputs(graph);
  seen.last = "n";
  EXPECT_FALSE(comparison.run(seen.callback()));
  EXPECT_THAT(seen.names, testing::ElementsAre("x", "n0", "n"));
  seen = {};
  EXPECT_TRUE(comparison.run(seen.callback()));
  EXPECT_EQ(seen.names.back(), "logits");
}

TEST_F(Comparisons, FindFirstDifferingNode) {
  Graph& graph = world.add(test::llama_graph(3));
  Comparison comparison(*first, graph, *second, leaves);
  Tensor& wrong = *leaves.find(*world.weights.find("up"));
  test::Values values = test::read_values(wrong);
  values[5] += 1.0;
  test::write_values(wrong, values);
  world.fill_inputs(graph);
  std::string found;
  EXPECT_FALSE(comparison.run([&](const ComparedNode& node) {
    const auto decoded = [&](std::span<const std::byte> bytes) {
      return test::decode(node.node.dtype, {bytes.begin(), bytes.end()}, node.node.elements());
    };
    found = node.node.name;
    return test::compare(decoded(node.second), decoded(node.first)).nmse < 1e-9;
  }));
  EXPECT_EQ(found, "u");
}

TEST_F(Comparisons, ShareCachesBetweenGraphs) {
  Graph &prompt = world.add(test::llama_graph(5)), &token = world.add(test::llama_graph(1));
  for (Graph* graph : {&prompt, &token}) {
    Comparison comparison(*first, *graph, *second, leaves);
    world.fill_inputs(*graph);
    ASSERT_TRUE(comparison.run(seen.callback()));
  }
  const Tensor& cache = *world.weights.find("ck");
  EXPECT_TRUE(test::close_to(test::read_values(*leaves.find(cache)), test::read_values(cache), {1e-6}));
}

TEST_F(Comparisons, SucceedAgainAfterFailures) {
  Graph& graph = world.add(test::llama_graph(3));
  EXPECT_THROW(Comparison(*first, graph, *first, leaves), InvalidArgument) << "the copies are on another device";
  Comparison comparison(*first, graph, *second, leaves);
  world.fill_inputs(graph);
  const HostTask broken{[](void*, const void*, bool) { fail<DeviceError>("broken"); }, nullptr, nullptr};
  for (Backend* stream : {first.get(), second->members()[2]}) {
    ASSERT_TRUE(stream->enqueue(broken));
    EXPECT_THROW(comparison.run(seen.callback()), DeviceError);
    EXPECT_TRUE(comparison.run(seen.callback()));
  }
}

}  // namespace
}  // namespace shoal::sched
