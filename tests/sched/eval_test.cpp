// Tests of the evaluation callback: the nodes for which the callback is called, the values that the callback reads, and
// the order of computation and callback.
#include <gmock/gmock.h>

#include "base/error.h"
#include "sched/scheduler.h"
#include "tests/meta/llama_graph.h"
#include "tests/sched/proxy.h"
#include "tests/sched/rig.h"

namespace shoal::sched {
namespace {

using test::ProxyBackend;
using test::ProxyDevice;
using test::Rig;
using test::World;
using testing::ElementsAre;
using testing::HasSubstr;
using testing::ThrowsMessage;

constexpr const char* kChain = R"(
input %x f32 [64, 2]
weight %w0 f32 [64, 96]
weight %w1 f32 [96, 32]
%h = mul_mat(%w0, %x)
%a = scale(%h) {scale=2}
%flat = reshape(%a) {shape=[48,4,1,1]}
%b = scale(%a) {scale=3}
%c = scale(%b) {scale=0.1}
%y = mul_mat(%w1, %c)
%z = scale(%y) {scale=2}
output %z
)";

/// An evaluation callback that observes the nodes in `wanted` and records their values.
struct Watch {
  std::vector<std::string> wanted;
  std::string last;  ///< the callback stops the run after the node with this name
  int asked = 0;
  std::map<std::string, test::Values> seen;
  std::vector<std::string> order;

  EvalCallback callback() {
    return [this](const Tensor& node, bool ask) {
      if (ask) {
        ++asked;
        return std::find(wanted.begin(), wanted.end(), node.name) != wanted.end();
      }
      order.push_back(node.name);
      seen[node.name] = test::read_values(node);
      return node.name != last;
    };
  }
};

struct EvalCallbacks : testing::Test {
  ProxyBackend& proxy(const std::unique_ptr<Backend>& backend) { return dynamic_cast<ProxyBackend&>(*backend); }
  void expect_seen(const Watch& watch, const std::string& text) {
    const auto expected = test::on_one(text, Rig::cpu(3), 1, true);
    for (const auto& [name, values] : watch.seen)
      EXPECT_TRUE(test::close_to(values, expected.at(name), {1e-9})) << name;
  }

  void graph_inputs(Graph& graph) {
    scheduler.allocate(graph);
    world.fill_inputs(graph);
  }

  Rig rig{4};
  ProxyDevice a{Rig::cpu(0), "A"}, b{Rig::cpu(1), "B"};
  std::unique_ptr<Backend> a_backend = a.init(""), b_backend = b.init("");
  World world{{{"w0", &a}, {"w1", &b}}};
  Scheduler scheduler{{a_backend.get(), b_backend.get()}};
  Watch watch;
};

TEST_F(EvalCallbacks, CauseSplitsOnlyAfterObservedNodes) {
  Graph& graph = world.add(kChain);
  watch.wanted = {"a", "y"};
  scheduler.set_eval_callback(watch.callback());
  scheduler.allocate(graph);
  world.fill_inputs(graph);
  ASSERT_EQ(scheduler.compute(graph), Status::kSuccess);
  EXPECT_THAT(watch.order, ElementsAre("a", "y"));
  expect_seen(watch, kChain);
  EXPECT_EQ(scheduler.splits(), 4);
  EXPECT_THAT(proxy(a_backend).segments, ElementsAre(0, 1)) << "h, a | b, c";
  EXPECT_THAT(proxy(b_backend).segments, ElementsAre(0, 1)) << "y | z";
  EXPECT_EQ(scheduler.plans_made(), 1U);
  EXPECT_EQ(watch.asked, 14) << "allocate() and compute() each query every node once";
}

TEST_F(EvalCallbacks, CanObserveAllNodesAndViews) {
  Graph& graph = world.add(kChain);
  for (const Tensor* node : graph.nodes()) watch.wanted.push_back(node->name);
  scheduler.set_eval_callback(watch.callback());
  for (int run = 0; run < 2; ++run) {
    scheduler.allocate(graph);
    world.fill_inputs(graph);
    watch.seen.clear();
    ASSERT_EQ(scheduler.compute(graph), Status::kSuccess);
    EXPECT_EQ(watch.seen.size(), graph.nodes().size());
    expect_seen(watch, kChain);
  }
  EXPECT_EQ(scheduler.plans_made(), 1U);
}

TEST_F(EvalCallbacks, StopRunByReturningFalse) {
  Graph& graph = world.add(kChain);
  watch.wanted = {"a", "y"};
  watch.last = "a";
  scheduler.set_eval_callback(watch.callback());
  scheduler.allocate(graph);
  world.fill_inputs(graph);
  EXPECT_EQ(scheduler.compute(graph), Status::kAborted);
  EXPECT_FALSE(scheduler.compute_async(graph));
  EXPECT_THAT(watch.order, ElementsAre("a", "a"));
  EXPECT_TRUE(proxy(b_backend).segments.empty()) << "no later node ran";
  watch.last.clear();
  ASSERT_EQ(scheduler.compute(graph), Status::kSuccess);
  test::expect_close(test::outputs(graph), test::on_one(kChain, Rig::cpu(3)));
}

TEST_F(EvalCallbacks, MayObserveOtherNodesInNextRun) {
  Graph& graph = world.add(kChain);
  const auto run = [&] {
    scheduler.allocate(graph);
    world.fill_inputs(graph);
    ASSERT_EQ(scheduler.compute(graph), Status::kSuccess);
    test::expect_close(test::outputs(graph), test::on_one(kChain, Rig::cpu(3)));
  };
  run();
  EXPECT_EQ(scheduler.splits(), 2);
  scheduler.set_eval_callback(watch.callback());
  watch.wanted = {"h"};
  run();
  EXPECT_EQ(scheduler.splits(), 3);
  watch.wanted = {"b"};
  run();
  EXPECT_THAT(watch.order, ElementsAre("h", "b"));
  scheduler.set_eval_callback({});
  run();
  EXPECT_EQ(scheduler.splits(), 2);
  EXPECT_EQ(scheduler.plans_made(), 4U);
}

TEST_F(EvalCallbacks, ReservedMemoryIsEnoughForObservedRun) {
  Graph& graph = world.add(kChain);
  watch.wanted = {"h", "b", "y"};
  scheduler.set_eval_callback(watch.callback());
  ASSERT_TRUE(scheduler.reserve(graph));
  const size_t bytes = scheduler.buffer_size(0);
  scheduler.allocate(graph);
  EXPECT_EQ(scheduler.buffer_size(0), bytes);
}

/// Expires when the callback that owns the token is destroyed.
using Life = std::weak_ptr<const void>;

TEST_F(EvalCallbacks, MayReplaceThemselvesDuringRun) {
  Graph& graph = world.add(kChain);
  graph_inputs(graph);
  for (const bool when_asked : {true, false}) {
    auto token = std::make_shared<const char>();
    const Life life = token;
    scheduler.set_eval_callback([&, token = std::move(token)](const Tensor& node, bool ask) {
      (void)token;
      if (ask == when_asked && node.name == "a") scheduler.set_eval_callback(watch.callback());
      EXPECT_FALSE(life.expired()) << "the callback was destroyed while it ran, at " << node.name;
      return true;
    });
    watch.order.clear();
    watch.wanted = {"y"};
    const auto run = [&] {
      ASSERT_EQ(scheduler.compute(graph), Status::kSuccess);
      test::expect_close(test::outputs(graph), test::on_one(kChain, Rig::cpu(3)));
    };
    run();
    EXPECT_TRUE(watch.order.empty()) << "the new callback observes only the next run";
    EXPECT_TRUE(life.expired());
    run();
    EXPECT_THAT(watch.order, ElementsAre("y"));
    scheduler.set_eval_callback({});
  }
}

TEST_F(EvalCallbacks, CannotPlanOrRunGraphs) {
  Graph &graph = world.add(kChain), &other = world.add(kChain);
  struct Call {
    std::string what;
    std::function<void()> make;
  };
  const std::vector<Call> calls{{"reset", [&] { scheduler.reset(); }},
                                {"reserve memory", [&] { scheduler.reserve(other); }},
                                {"allocate a graph", [&] { scheduler.allocate(other); }},
                                {"run a graph", [&] { scheduler.compute_async(other); }}};
  for (const Call& call : calls) {
    int refused = 0;
    scheduler.set_eval_callback([&](const Tensor& node, bool) {
      if (node.name != "a") return false;
      EXPECT_THAT(call.make, ThrowsMessage<InvalidArgument>(HasSubstr("cannot " + call.what + " inside its own")));
      ++refused;
      return true;
    });
    graph_inputs(graph);
    ASSERT_EQ(scheduler.compute(graph), Status::kSuccess);
    test::expect_close(test::outputs(graph), test::on_one(kChain, Rig::cpu(3)));
    EXPECT_EQ(refused, 3) << "two queries by allocate() and compute(), and one observation by compute()";
    scheduler.set_eval_callback({});
    EXPECT_NO_THROW(call.make());
    scheduler.synchronize();
  }
}

// On a meta device, attn_out and ffn_out are partial sums. The callback must read the complete sums.
TEST_F(EvalCallbacks, SeeCompleteSumsOnMetaDevices) {
  const auto mesh = Rig::mesh({0, 1}, test::llama_layouts({3, 1}));
  const auto meta = mesh->init();
  const auto host = Rig::cpu(2).init();
  World model({{"head", &Rig::cpu(2)}, {"*", mesh.get()}});
  Graph& graph = model.add(test::llama_graph(3));
  for (const Tensor* node : graph.nodes()) watch.wanted.push_back(node->name);
  Scheduler both({meta.get(), host.get()});
  both.set_eval_callback(watch.callback());
  both.allocate(graph);
  model.fill_inputs(graph);
  ASSERT_EQ(both.compute(graph), Status::kSuccess);
  EXPECT_GT(watch.seen.size(), 30U);
  EXPECT_TRUE(watch.seen.contains("attn_out"));
  expect_seen(watch, test::llama_graph(3));
}

}  // namespace
}  // namespace shoal::sched
