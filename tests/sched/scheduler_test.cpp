// Tests of runs of a scheduler on CPU devices: order of work, cached plans and new plans. The tests of meta devices are
// in meta_test.cpp, and the tests of failures are in failure_test.cpp.
#include "sched/scheduler.h"

#include <gmock/gmock.h>

#include <thread>

#include "base/error.h"
#include "graph/ops/ops.h"
#include "tests/sched/proxy.h"
#include "tests/sched/rig.h"
#include "tests/support/gate.h"
#include "tests/support/poison.h"

namespace shoal::sched {
namespace {

using test::Gate;
using test::ProxyBackend;
using test::ProxyDevice;
using test::Rig;
using test::World;

/// A graph that computes y = w1 * silu(w0 * x) for `tokens` tokens. In most tests, w0 and w1 are on different devices.
std::string two_layers(int64_t tokens = 1) {
  return fmt::format(R"(
input %x f32 [64, {}]
weight %w0 f32 [64, 96]
weight %w1 f32 [96, 32]
%h = mul_mat(%w0, %x)
%a = unary(%h) {{kind=silu}}
%y = mul_mat(%w1, %a)
output %y
)",
                     tokens);
}

/// Two CPU devices with their backends. Neither device can read the memory of the other device.
struct SchedulerRuns : testing::Test {
  std::unique_ptr<Scheduler> make(SchedulerOptions options = {}) {
    return std::make_unique<Scheduler>(std::vector<Backend*>{a_backend.get(), b_backend.get()}, options);
  }
  static ProxyBackend& proxy(Backend& backend) { return dynamic_cast<ProxyBackend&>(backend); }
  static std::vector<float> ramp(const Tensor& tensor, float first) {
    std::vector<float> values(static_cast<size_t>(tensor.elements()));
    for (size_t i = 0; i < values.size(); ++i) values[i] = first + 0.01f * static_cast<float>(i % 50);
    return values;
  }
  static void set(Tensor& tensor, const std::vector<float>& values) {
    tensor_set(tensor, values.data(), 0, values.size() * 4);
  }
  /// Returns y for x = ramp(first), computed on one device.
  std::vector<float> expected(int64_t tokens, float first) const {
    World world({{"*", &Rig::cpu(2)}});
    Graph& graph = world.add(two_layers(tokens));
    const auto backend = Rig::cpu(2).init();
    const auto plan = backend->create_plan(graph);
    set(*graph.inputs()[0], ramp(*graph.inputs()[0], first));
    EXPECT_EQ(backend->compute(*plan), Status::kSuccess);
    return test::read_floats(*graph.find("y"));
  }
  void check(Scheduler& scheduler, Graph& graph, float first) {
    scheduler.allocate(graph);
    Tensor& x = *graph.inputs()[0];
    set(x, ramp(x, first));
    ASSERT_EQ(scheduler.compute(graph), Status::kSuccess);
    EXPECT_EQ(test::read_floats(*graph.find("y")), expected(x.shape[1], first));
  }

  Rig rig{3};
  ProxyDevice a{Rig::cpu(0), "A"}, b{Rig::cpu(1), "B"};
  std::unique_ptr<Backend> a_backend = a.init(""), b_backend = b.init("");
  World world{{{"w0", &a}, {"w1", &b}}};
};

TEST_F(SchedulerRuns, RefuseInvalidBackends) {
  EXPECT_THROW(Scheduler({}), InvalidArgument);
  EXPECT_THROW(Scheduler({a_backend.get(), nullptr}), InvalidArgument);
  EXPECT_THROW(Scheduler({a_backend.get(), a_backend.get()}), InvalidArgument);
  EXPECT_THROW(make({.copies = 0}), InvalidArgument);
  EXPECT_THROW(make()->schedule(), InvalidArgument) << "nothing is scheduled yet";
}

TEST_F(SchedulerRuns, GiveSameResultsAsOneDevice) {
  const auto scheduler = make();
  Graph& graph = world.add(two_layers(3));
  for (float first : {1.0f, -2.0f, 0.5f}) check(*scheduler, graph, first);
  EXPECT_EQ(scheduler->splits(), 2);
  EXPECT_EQ(scheduler->schedule().copies(), 2);
  EXPECT_EQ(scheduler->backends(), 2);
  EXPECT_EQ(&scheduler->backend(1), b_backend.get());
  EXPECT_EQ(&scheduler->buffer_type(1), &b.buffer_type());
  EXPECT_EQ(scheduler->backend_of(*graph.find("a")), a_backend.get());
  EXPECT_EQ(scheduler->backend_of(*graph.find("y")), b_backend.get());
  EXPECT_EQ(scheduler->backend_of(*graph.inputs()[0]), nullptr);
  EXPECT_EQ(scheduler->backend_of(*world.weights.find("w0")), nullptr);
  EXPECT_GT(scheduler->buffer_size(0), 0U);
  EXPECT_EQ(scheduler->member_sizes(0).size(), 1U);
}

TEST_F(SchedulerRuns, AreCorrectOnDevicesWithoutEvents) {
  a.has_events = b.has_events = false;
  const auto scheduler = make({.copies = 2});
  Graph& graph = world.add(two_layers(3));
  for (float first : {1.0f, -2.0f, 0.5f}) check(*scheduler, graph, first);
}

TEST_F(SchedulerRuns, EachQueuedRunCopiesInputsWithoutBlockingHost) {
  Graph& graph = world.add(two_layers(2));
  Tensor& x = *graph.inputs()[0];
  const Tensor& y = *graph.find("y");
  for (Backend* held : {a_backend.get(), b_backend.get()}) {
    const auto scheduler = make({.copies = 3});
    scheduler->allocate(graph);
    std::vector<std::vector<float>> seen(3, std::vector<float>(static_cast<size_t>(y.elements())));
    Gate gate;
    ASSERT_TRUE(held->enqueue(gate.task()));
    for (size_t run = 0; run < 3; ++run) {
      set(x, ramp(x, static_cast<float>(run)));
      scheduler->compute_async(graph);
      set(x, std::vector<float>(static_cast<size_t>(x.elements()), 1e9f));
      scheduler->get_async(y, seen[run].data(), 0, y.bytes());
    }
    EXPECT_FALSE(gate.expired);
    gate.open = true;
    scheduler->synchronize();
    for (size_t run = 0; run < 3; ++run) EXPECT_EQ(seen[run], expected(2, static_cast<float>(run))) << run;
  }
}

TEST_F(SchedulerRuns, CopyInputOnceForTwoBackends) {
  Graph& graph = world.add(R"(
input %x f32 [64, 2]
weight %w0 f32 [64, 96]
weight %w1 f32 [64, 96]
%h = mul_mat(%w0, %x)
%g = mul_mat(%w1, %x)
%y = add(%h, %g)
output %y
)");
  Tensor& x = *graph.inputs()[0];
  const Tensor& y = *graph.find("y");
  const auto run = [&](Scheduler& scheduler, float first, std::vector<float>& seen) {
    set(x, ramp(x, first));
    scheduler.compute_async(graph);
    set(x, std::vector<float>(static_cast<size_t>(x.elements()), 1e9f));
    seen.resize(static_cast<size_t>(y.elements()));
    scheduler.get_async(y, seen.data(), 0, y.bytes());
  };
  std::vector<float> alone[2];
  for (int i : {0, 1}) {
    const auto scheduler = make();
    scheduler->allocate(graph);
    // Host memory contains the caller's x, two slots (intermediate buffers) for x, and one slot for an operand of the
    // sum.
    EXPECT_EQ(scheduler->host_bytes(), 3 * x.bytes() + y.bytes());
    run(*scheduler, static_cast<float>(i), alone[i]);
    scheduler->synchronize();
  }
  EXPECT_NE(alone[0], alone[1]);
  for (Backend* held : {a_backend.get(), b_backend.get()}) {
    const auto scheduler = make();
    scheduler->allocate(graph);
    Gate gate;
    ASSERT_TRUE(held->enqueue(gate.task()));
    std::vector<float> seen[2];
    for (int i : {0, 1}) run(*scheduler, static_cast<float>(i), seen[i]);
    EXPECT_FALSE(gate.expired);
    gate.open = true;
    scheduler->synchronize();
    for (int i : {0, 1}) EXPECT_EQ(seen[i], alone[i]) << i;
  }
}

TEST_F(SchedulerRuns, WaitForFreeSlot) {
  Graph& graph = world.add(two_layers(2));
  Tensor& x = *graph.inputs()[0];
  const auto scheduler = make({.copies = 2});
  scheduler->allocate(graph);
  Gate gate;
  ASSERT_TRUE(a_backend->enqueue(gate.task()));
  for (float run : {0.0f, 1.0f}) {
    set(x, ramp(x, run));
    scheduler->compute_async(graph);
  }
  EXPECT_FALSE(gate.open);
  std::thread opener([&] {
    std::this_thread::sleep_for(std::chrono::milliseconds(30));
    gate.open = true;
  });
  set(x, ramp(x, 2.0f));
  scheduler->compute_async(graph);
  EXPECT_TRUE(gate.open) << "the third run did not wait for the slot of the first";
  opener.join();
  scheduler->synchronize();
  EXPECT_EQ(test::read_floats(*graph.find("y")), expected(2, 2.0f));
}

TEST_F(SchedulerRuns, MayAlternateBetweenGraphs) {
  Graph &one = world.add(two_layers(1)), &many = world.add(two_layers(5));
  const auto scheduler = make({.copies = 2});
  ASSERT_TRUE(scheduler->reserve(many));
  std::vector<std::vector<float>> seen(20);
  for (Graph* graph : {&one, &many}) scheduler->allocate(*graph);
  for (size_t run = 0; run < seen.size(); ++run) {
    Graph& graph = run % 3 == 0 ? many : one;
    seen[run].resize(static_cast<size_t>(graph.find("y")->elements()));
    Tensor& x = *graph.inputs()[0];
    set(x, ramp(x, static_cast<float>(run)));
    scheduler->compute_async(graph);
    scheduler->get_async(*graph.find("y"), seen[run].data(), 0, seen[run].size() * 4);
  }
  scheduler->synchronize();
  for (size_t run = 0; run < seen.size(); ++run) {
    EXPECT_EQ(seen[run], expected(run % 3 == 0 ? 5 : 1, static_cast<float>(run))) << run;
  }
  EXPECT_EQ(scheduler->plans_made(), 2U);
}

TEST_F(SchedulerRuns, KeepInputsPlacedByCaller) {
  Graph& graph = world.add(two_layers());
  Tensor* x = graph.inputs()[0];
  const auto own = allocate_tensors({&x, 1}, Rig::cpu(2).buffer_type(), Usage::kAny);
  const auto scheduler = make();
  check(*scheduler, graph, 1.0f);
  EXPECT_EQ(x->buffer, own.get());
}

TEST_F(SchedulerRuns, InputsCanBeReadWithGetAsync) {
  Graph& graph = world.add(two_layers());
  const auto scheduler = make();
  check(*scheduler, graph, 1.0f);
  float value = 0;
  scheduler->get_async(*graph.inputs()[0], &value, 4, 4);
  scheduler->synchronize();
  EXPECT_EQ(value, 1.01f);
}

// Backend B reads the cache in the memory of A. Then A writes one row of the cache. The next run reads this row.
TEST_F(SchedulerRuns, AccessSharedCacheInOrder) {
  const std::string text = R"(
input %x f32 [32, 1]
input %slots16.rows i32 [1]
cache %ck f16 [32, 16]
%score = mul_mat(%ck, %x)
%keys = set_rows(%ck, %x, %slots16.rows)
output %score
)";
  b.reads_all = true;
  for (Backend* held : {a_backend.get(), b_backend.get()}) {
    World rows({{"ck", &a}});
    Graph& graph = rows.add(text);
    const auto scheduler = make({.copies = 4});
    scheduler->set_backend(*graph.find("score"), b_backend.get());
    scheduler->allocate(graph);
    ASSERT_TRUE(scheduler->schedule().ordered) << to_string(scheduler->schedule());
    rows.memory[0]->clear(0);
    Gate gate;
    ASSERT_TRUE(held->enqueue(gate.task()));
    std::vector<std::vector<float>> seen(4, std::vector<float>(16));
    for (int32_t run = 0; run < 4; ++run) {
      set(*graph.find("x"), std::vector<float>(32, 1.0f));
      tensor_set(*graph.find("slots16.rows"), &run, 0, 4);
      scheduler->compute_async(graph);
      scheduler->get_async(*graph.find("score"), seen[static_cast<size_t>(run)].data(), 0, 64);
    }
    std::this_thread::sleep_for(std::chrono::milliseconds(5));  // a backend that does not wait ends in this time
    gate.open = true;
    scheduler->synchronize();
    for (int run = 0; run < 4; ++run) {
      std::vector<float> expected(16, 0.0f);
      for (int row = 0; row < run; ++row) expected[static_cast<size_t>(row)] = 32.0f;
      EXPECT_EQ(seen[static_cast<size_t>(run)], expected) << "run " << run;
    }
  }
}

TEST_F(SchedulerRuns, ReservedMemoryDoesNotGrow) {
  Graph &small = world.add(two_layers(1)), &large = world.add(two_layers(40)), &middle = world.add(two_layers(7));
  const auto scheduler = make();
  ASSERT_TRUE(scheduler->reserve(large));
  EXPECT_EQ(scheduler->plans_made(), 0U);
  EXPECT_EQ(large.find("y")->buffer, nullptr) << "reserve() keeps no plan";
  const size_t a_bytes = scheduler->buffer_size(0), b_bytes = scheduler->buffer_size(1);
  EXPECT_GE(a_bytes, 40U * (64 + 96) * 4);
  EXPECT_GE(b_bytes, 40U * (96 + 32) * 4);
  for (int round = 0; round < 3; ++round) {
    for (Graph* graph : {&small, &large, &middle}) check(*scheduler, *graph, static_cast<float>(round));
  }
  EXPECT_EQ(scheduler->plans_made(), 3U);
  EXPECT_EQ(scheduler->buffer_size(0), a_bytes);
  EXPECT_EQ(scheduler->buffer_size(1), b_bytes);
}

TEST_F(SchedulerRuns, MemoryGrowsWithoutReserve) {
  const size_t free = a.memory().free;
  {
    Graph &small = world.add(two_layers(1)), &large = world.add(two_layers(40));
    const auto scheduler = make();
    check(*scheduler, small, 1.0f);
    const size_t before = scheduler->buffer_size(0);
    check(*scheduler, large, 1.0f);
    EXPECT_GT(scheduler->buffer_size(0), before);
    check(*scheduler, small, 2.0f);
    check(*scheduler, large, 2.0f);
    EXPECT_EQ(free - a.memory().free, scheduler->buffer_size(0)) << "memory that became too small was freed";
  }
  EXPECT_EQ(a.memory().free, free);
}

TEST_F(SchedulerRuns, KeepPlansOfMostRecentlyUsedGraphs) {
  std::vector<Graph*> graphs;
  for (int64_t tokens : {4, 3, 2}) graphs.push_back(&world.add(two_layers(tokens)));
  const auto scheduler = make({.kept_graphs = 2});
  for (Graph* graph : graphs) check(*scheduler, *graph, 1.0f);
  EXPECT_EQ(scheduler->plans_made(), 3U);
  EXPECT_EQ(graphs[0]->find("y")->buffer, nullptr);
  EXPECT_NE(graphs[0]->inputs()[0]->buffer, nullptr) << "inputs that the caller has written keep their memory";
  check(*scheduler, *graphs[1], 2.0f);
  EXPECT_EQ(scheduler->plans_made(), 3U);
  set(*graphs[0]->inputs()[0], test::read_floats(*graphs[0]->inputs()[0]));
  ASSERT_EQ(scheduler->compute(*graphs[0]), Status::kSuccess);
  EXPECT_EQ(test::read_floats(*graphs[0]->find("y")), expected(4, 1.0f));
  EXPECT_EQ(scheduler->plans_made(), 4U);
  check(*scheduler, *graphs[1], 3.0f);
  EXPECT_EQ(scheduler->plans_made(), 4U) << "the plan of the third graph was dropped";
}

TEST_F(SchedulerRuns, GraphsMayBeDestroyedBeforeTheirPlans) {
  const auto scheduler = make();
  Graph& stays = world.add(two_layers(2));
  check(*scheduler, stays, 1.0f);
  for (int round = 0; round < 5; ++round) {
    Graph& graph = world.add(two_layers(2));
    check(*scheduler, graph, static_cast<float>(round));
    world.graphs.pop_back();
  }
  check(*scheduler, stays, 3.0f);
  EXPECT_EQ(scheduler->plans_made(), 6U);
}

TEST_F(SchedulerRuns, ReplanAfterWeightIsPlacedAgain) {
  const auto scheduler = make();
  Graph& graph = world.add(two_layers(2));
  check(*scheduler, graph, 1.0f);
  Tensor* w0 = world.weights.find("w0");
  const std::unique_ptr<Buffer> old = std::move(world.memory[0]);
  w0->buffer = nullptr, w0->data = nullptr;
  world.memory[0] = allocate_tensors({&w0, 1}, b.buffer_type(), Usage::kWeights);
  world.fill(*w0);
  check(*scheduler, graph, 2.0f);
  EXPECT_EQ(scheduler->plans_made(), 2U);
  EXPECT_EQ(scheduler->splits(), 1) << "all nodes are on B now";
}

TEST_F(SchedulerRuns, KeepBackendsSetByUserUntilReset) {
  const auto scheduler = make();
  Graph& graph = world.add(two_layers(2));
  check(*scheduler, graph, 1.0f);
  const Tensor& h = *graph.find("a");
  scheduler->set_backend(h, b_backend.get());
  check(*scheduler, graph, 2.0f);
  EXPECT_EQ(scheduler->backend_of(h), b_backend.get());
  EXPECT_EQ(scheduler->plans_made(), 2U);
  scheduler->set_backend(h, nullptr);
  check(*scheduler, graph, 2.0f);
  EXPECT_EQ(scheduler->backend_of(h), a_backend.get());
  scheduler->set_backend(h, b_backend.get());
  const size_t reserved = scheduler->buffer_size(0);
  scheduler->reset();
  EXPECT_EQ(graph.find("y")->buffer, nullptr);
  EXPECT_EQ(scheduler->buffer_size(0), reserved);
  check(*scheduler, graph, 3.0f);
  EXPECT_EQ(scheduler->backend_of(h), a_backend.get());
  const auto stranger = Rig::cpu(2).init();
  EXPECT_THROW(scheduler->set_backend(h, stranger.get()), InvalidArgument);
}

TEST_F(SchedulerRuns, MakingScheduleAllocatesNothing) {
  Graph& graph = world.add(two_layers(2));
  const auto scheduler = make();
  EXPECT_EQ(scheduler->split(graph).splits.size(), 2U);
  EXPECT_EQ(scheduler->buffer_size(0), 0U);
  EXPECT_EQ(graph.inputs()[0]->buffer, nullptr);
}

TEST_F(SchedulerRuns, ShareWeightsBetweenTwoSchedulers) {
  Graph &one = world.add(two_layers(1)), &many = world.add(two_layers(6));
  const auto a2 = a.init(""), b2 = b.init("");
  const auto first = make();
  Scheduler second({a2.get(), b2.get()});
  first->allocate(one);
  second.allocate(many);
  for (int run = 0; run < 20; ++run) {
    set(*one.inputs()[0], ramp(*one.inputs()[0], static_cast<float>(run)));
    set(*many.inputs()[0], ramp(*many.inputs()[0], static_cast<float>(-run)));
    first->compute_async(one);
    second.compute_async(many);
    first->synchronize();
    second.synchronize();
    EXPECT_EQ(test::read_floats(*one.find("y")), expected(1, static_cast<float>(run)));
    EXPECT_EQ(test::read_floats(*many.find("y")), expected(6, static_cast<float>(-run)));
  }
  EXPECT_THROW(second.allocate(one), InvalidArgument) << "the first scheduler has planned the graph";
}

TEST_F(SchedulerRuns, CopyOnlyUsedExperts) {
  const std::string text = R"(
input %x f32 [32, 1, 4]
input %ids6.chosen i32 [2, 4]
weight %experts f32 [32, 16, 6]
%e = mul_mat_id(%experts, %x, %ids6.chosen)
output %e
)";
  a.wants = [](const Tensor&) { return true; };
  World moe({{"experts", &b}});
  Graph& graph = moe.add(text);
  const auto scheduler = make();
  scheduler->allocate(graph);
  EXPECT_EQ(scheduler->backend_of(*graph.find("e")), a_backend.get());
  const size_t expert = 32 * 16 * 4;
  const auto run = [&](const std::vector<int32_t>& ids) {
    moe.fill_inputs(graph);
    tensor_set(*graph.find("ids6.chosen"), ids.data(), 0, ids.size() * 4);
    proxy(*a_backend).sets.clear();
    EXPECT_EQ(scheduler->compute(graph), Status::kSuccess);
    std::vector<std::pair<size_t, size_t>> brought;
    for (const ProxyBackend::Access& access : proxy(*a_backend).sets) {
      if (access.tensor == "experts") brought.push_back({access.offset / expert, access.bytes / expert});
    }
    const auto got = test::read_values(*graph.find("e"));
    World one({{"*", &Rig::cpu(2)}});
    Graph& same = one.add(text);
    const auto backend = Rig::cpu(2).init();
    const auto plan = backend->create_plan(same);
    one.fill_inputs(same);
    tensor_set(*same.find("ids6.chosen"), ids.data(), 0, ids.size() * 4);
    EXPECT_EQ(backend->compute(*plan), Status::kSuccess);
    EXPECT_EQ(got, test::read_values(*same.find("e")));
    return brought;
  };
  using Runs = std::vector<std::pair<size_t, size_t>>;
  EXPECT_EQ(run({1, 2, 2, 1, 1, 2, 5, 1}), (Runs{{1, 2}, {5, 1}}));
  EXPECT_EQ(run({0, 0, 0, 0, 0, 0, 0, 0}), (Runs{{0, 1}}));
  EXPECT_EQ(run({0, 1, 2, 3, 4, 5, 0, 1}), (Runs{{0, 6}}));
}

TEST_F(SchedulerRuns, ExpertIdsMayBeAWeight) {
  const std::string text = R"(
input %x f32 [32, 1, 4]
weight %ids6.chosen i32 [2, 4]
weight %experts f32 [32, 16, 6]
%e = mul_mat_id(%experts, %x, %ids6.chosen)
output %e
)";
  a.wants = [](const Tensor&) { return true; };
  World moe({{"*", &b}});
  Graph& graph = moe.add(text);
  const auto scheduler = make();
  const auto reference = test::on_one(text, Rig::cpu(2));
  for (int run = 0; run < 2; ++run) {
    scheduler->allocate(graph);
    test::poison(graph, *scheduler->scheduled().plan(0));
    moe.fill_inputs(graph);
    for (Tensor* weight : moe.weights.tensors()) moe.fill(*weight);
    ASSERT_EQ(scheduler->compute(graph), Status::kSuccess);
    test::expect_close(test::outputs(graph), reference, 0.0);
  }
}

TEST_F(SchedulerRuns, ExpertIdsMayBeComputed) {
  const std::string text = test::kChosenExperts;
  a.wants = [](const Tensor& node) { return node.op == Op::kMulMatId; };
  const auto reference = test::on_one(text, Rig::cpu(2));
  for (Device* router : {static_cast<Device*>(&a), static_cast<Device*>(&b)}) {
    World moe({{"experts", &b}, {"router", router}});
    Graph& graph = moe.add(text);
    const auto scheduler = make({.copies = 2});
    scheduler->allocate(graph);
    for (int round = 0; round < 3; ++round) {
      moe.fill_inputs(graph);
      ASSERT_EQ(scheduler->compute(graph), Status::kSuccess);
      test::expect_close(test::outputs(graph), reference, 0.0);
    }
  }
}

/// A graph with experts in host memory. Between the computation of the ids and each use of the experts, the device runs
/// other nodes. These nodes must not overwrite the ids. The device of `router` computes the ids.
std::string experts_between(bool brought_early) {
  std::string text = R"(
input %x f32 [32, 1, 4]
weight %router f32 [32, 8]
weight %a0 f32 [32, 256]
weight %a1 f32 [256, 32]
weight %b0 f32 [32, 64]
weight %b1 f32 [64, 32]
weight %up f32 [32, 16, 8]
weight %down f32 [16, 32, 8]
weight %gain f32 [16]
weight %a_own f32 [32, 8, 8]
%flat = reshape(%x) {shape=[32,4,1,1]}
%scores = mul_mat(%router, %flat)
%chosen = top_k(%scores) {k=2}
)";
  // This node runs on A, so the scheduler copies the ids to A before the split that uses the streamed experts.
  if (brought_early) text += "%early = mul_mat_id(%a_own, %x, %chosen)\noutput %early\n";
  return text + R"(
%h0 = mul_mat(%b0, %flat)
%h1 = mul_mat(%b1, %h0)
%h2 = mul_mat(%a0, %h1)
%h3 = mul_mat(%a1, %h2)
%h4 = mul_mat(%b0, %h3)
%h5 = mul_mat(%b1, %h4)
%y = reshape(%h5) {shape=[32,1,4,1]}
%e = mul_mat_id(%up, %y, %chosen)
%f = mul(%e, %gain)
%d = mul_mat_id(%down, %f, %chosen)
output %h3
output %d
)";
}

TEST_F(SchedulerRuns, ExpertIdsOutliveOtherSplitsOfTheirBackend) {
  a.wants = [](const Tensor& node) { return node.op == Op::kMulMatId; };
  for (const bool made_here : {true, false}) {
    const std::string text = experts_between(!made_here);
    World moe({{"router", made_here ? &a : &b}, {"a*", &a}, {"*", &b}});
    Graph& graph = moe.add(text);
    const auto scheduler = make();
    scheduler->allocate(graph);
    for (const char* name : {"h3", "e", "d"}) EXPECT_EQ(scheduler->backend_of(*graph.find(name)), a_backend.get());
    for (const char* name : {"h1", "h5", "f"}) EXPECT_EQ(scheduler->backend_of(*graph.find(name)), b_backend.get());
    for (uint64_t seed = 1; seed <= 4; ++seed) {
      test::poison(graph, *scheduler->scheduled().plan(0));  // overwrites the experts of the previous run
      moe.seed = seed;
      moe.fill_inputs(graph);
      for (Tensor* weight : moe.weights.tensors()) moe.fill(*weight);
      ASSERT_EQ(scheduler->compute(graph), Status::kSuccess);
      test::expect_close(test::outputs(graph), test::on_one(text, Rig::cpu(2), seed), 0.0);
    }
  }
}

TEST_F(SchedulerRuns, StreamedWeightsReuseMemory) {
  a.wants = [](const Tensor&) { return true; };
  std::vector<size_t> needed;
  for (int layers : {3, 8}) {
    std::string text = "input %h0 f32 [64, 16]\n";
    for (int i = 0; i < layers; ++i) {
      text += fmt::format("weight %w{0} f32 [64, 64]\n%h{1} = mul_mat(%w{0}, %h{0})\n", i, i + 1);
    }
    text += fmt::format("output %h{}\n", layers);
    World on_host({{"*", &b}});
    Graph& graph = on_host.add(text);
    const auto scheduler = make();
    scheduler->allocate(graph);
    EXPECT_EQ(scheduler->splits(), layers);
    needed.push_back(scheduler->buffer_size(0));
    for (int run = 0; run < 3; ++run) {
      on_host.fill_inputs(graph);
      ASSERT_EQ(scheduler->compute(graph), Status::kSuccess);
      test::expect_close(test::outputs(graph), test::on_one(text, Rig::cpu(2)), 0.0);
    }
  }
  EXPECT_EQ(needed[0], needed[1]) << "the next weight reuses the memory of a used weight";
}

TEST_F(SchedulerRuns, UnsupportedNodeRunsOnOtherBackendWithCopiedWeight) {
  a.refuses = [](const Tensor& node) { return node.name == "h"; };
  Graph& graph = world.add(two_layers(2));
  const auto scheduler = make({.copies = 2});
  for (float first : {1.0f, 2.0f, 3.0f}) check(*scheduler, graph, first);
  EXPECT_EQ(scheduler->backend_of(*graph.find("h")), b_backend.get());
}

}  // namespace
}  // namespace shoal::sched
