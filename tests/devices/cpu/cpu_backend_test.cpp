#include "devices/cpu/cpu_backend.h"

#include <gmock/gmock.h>

#include <atomic>
#include <chrono>
#include <set>
#include <thread>

#include "base/error.h"
#include "devices/allocate.h"
#include "devices/cpu/cpu_plan.h"
#include "graph/ops/ops.h"
#include "tests/devices/cpu_configuration.h"
#include "tests/support/allocation_count.h"
#include "tests/support/gate.h"

namespace shoal::cpu {
namespace {

using namespace std::chrono_literals;

Device& cpu(int index) {
  return Registry::instance().device("CPU" + std::to_string(index));
}

/// Two host tasks that wait for each other. If they do not run at the same time, `missed` is set.
struct Meeting {
  std::atomic<int> present{0};
  std::atomic<bool> missed{false};
  static void attend(void* object, const void*, bool) {
    auto& meeting = *static_cast<Meeting*>(object);
    ++meeting.present;
    const auto deadline = std::chrono::steady_clock::now() + 30s;
    while (meeting.present < 2) {
      if (std::chrono::steady_clock::now() > deadline) return void(meeting.missed = true);
      std::this_thread::yield();
    }
  }
};

/// A chain of element-wise nodes that keeps the device busy. Each node adds 1.
struct Chain {
  explicit Chain(int64_t length, int steps) : values(static_cast<size_t>(length)) {
    x = graph.input("x", DType::kF32, {length, 1, 1, 1});
    y = x;
    for (int i = 0; i < steps; ++i) y = scale(graph, y, {1.0f, 1.0f});
    graph.output(y);
    for (size_t i = 0; i < values.size(); ++i) values[i] = static_cast<float>(i % 1000);
  }
  void check(int steps) const {
    std::vector<float> got(values.size());
    tensor_get(*y, got.data(), 0, got.size() * 4);
    for (size_t i = 0; i < got.size(); ++i) ASSERT_EQ(got[i], values[i] + static_cast<float>(steps)) << i;
  }
  Graph graph;
  Tensor *x, *y;
  std::vector<float> values;
};

TEST(CpuBackend, StreamsOfTwoDevicesRunConcurrently) {
  const test::CpuConfiguration configuration("devices=2,threads=1");
  const auto first = cpu(0).init();
  const auto second = cpu(1).init();
  Chain a(5000, 20), b(5000, 20);
  const auto plan_a = first->create_plan(a.graph);
  const auto plan_b = second->create_plan(b.graph);
  // Each stream waits for the other stream before its first run and between its two runs. If the streams did not run
  // concurrently, these waits would time out.
  Meeting before, between;
  for (auto [backend, plan, chain] : {std::tuple(first.get(), plan_a.get(), &a), {second.get(), plan_b.get(), &b}}) {
    backend->set_async(*chain->x, chain->values.data(), 0, chain->values.size() * 4);
    ASSERT_TRUE(backend->enqueue({Meeting::attend, &before, nullptr}));
    backend->compute_async(*plan);
    backend->enqueue({Meeting::attend, &between, nullptr});
    backend->set_async(*chain->x, chain->values.data(), 0, chain->values.size() * 4);
    backend->compute_async(*plan);
  }
  first->synchronize();
  second->synchronize();
  EXPECT_FALSE(before.missed);
  EXPECT_FALSE(between.missed);
  a.check(20);
  b.check(20);
}

TEST(CpuBackend, RunningAPlanAllocatesNothing) {
  if (!test::counts_allocations()) GTEST_SKIP() << "the sanitizer replaces operator new";
  const test::CpuConfiguration configuration("devices=2,threads=2");
  const auto backend = cpu(0).init();
  const auto other = cpu(1).init();
  Chain chain(70000, 10);  // large enough for all threads of the team
  const auto plan = backend->create_plan(chain.graph);
  TensorContext context;
  Tensor* copy = context.add("copy", DType::kF32, {70000, 1, 1, 1});
  const auto memory = allocate_tensors({&copy, 1}, cpu(1).buffer_type(), Usage::kAny);
  const auto event = cpu(0).new_event();
  const auto nothing = [](void*, const void*, bool) {};
  const auto step = [&] {
    for (int i = 0; i < 50; ++i) {
      backend->set_async(*chain.x, chain.values.data(), 0, chain.values.size() * 4);
      backend->compute_async(*plan);
      backend->enqueue({nothing, nullptr, nullptr});
      backend->copy_async(*chain.y, *other, *copy);
      event->record(*backend);
      event->wait(*other);
    }
    other->synchronize();
    backend->synchronize();
  };
  step();  // the first call starts the threads
  const int64_t before = test::allocation_count();
  EXPECT_GT(before, 0);
  step();
  EXPECT_EQ(test::allocation_count() - before, 0);
  chain.check(10);
}

TEST(CpuBackend, HeldWorkStartsAtTheLastRelease) {
  const test::CpuConfiguration configuration("devices=2,threads=1");
  const auto backend = cpu(0).init();
  std::atomic<int> done{0};
  const HostTask task{[](void* object, const void*, bool) { ++*static_cast<std::atomic<int>*>(object); }, &done,
                      nullptr};
  {
    const HeldBackend outer(*backend);
    {
      const HeldBackend inner(*backend);
      backend->enqueue(task);
    }
    std::this_thread::sleep_for(5ms);
    EXPECT_EQ(done, 0) << "the inner release must not start the work";
    backend->enqueue(task);
  }
  const auto deadline = std::chrono::steady_clock::now() + 20s;
  while (done < 2 && std::chrono::steady_clock::now() < deadline) std::this_thread::yield();
  EXPECT_EQ(done, 2) << "the last release must start the work";
}

TEST(CpuBackend, WaitingReleasesHeldWork) {
  const test::CpuConfiguration configuration("devices=2,threads=1");
  const auto backend = cpu(0).init();
  const auto other = cpu(1).init();
  const auto event = cpu(0).new_event();
  Chain chain(100, 3);
  auto plan = backend->create_plan(chain.graph);
  const HeldBackend held(*backend);
  backend->set_async(*chain.x, chain.values.data(), 0, chain.values.size() * 4);
  backend->compute_async(*plan);
  backend->synchronize();
  chain.check(3);
  backend->compute_async(*plan);
  event->record(*backend);
  event->wait(*other);
  other->synchronize();
  backend->compute_async(*plan);
  event->record(*backend);
  event->synchronize();
  backend->compute_async(*plan);
  plan.reset();
}

TEST(CpuBackend, GraphHasOnePlanAtATime) {
  const test::CpuConfiguration configuration("devices=2,threads=1");
  const auto backend = cpu(0).init();
  const auto other = cpu(1).init();
  Chain chain(100, 3);
  auto plan = backend->create_plan(chain.graph);
  const auto refused = testing::ThrowsMessage<InvalidArgument>(testing::HasSubstr("already has a plan on CPU0"));
  EXPECT_THAT([&] { other->create_plan(chain.graph); }, refused);
  EXPECT_THAT([&] { backend->compute(chain.graph); }, refused);
  plan.reset();
  backend->plans().plan(chain.graph);
  tensor_set(*chain.x, chain.values.data(), 0, chain.values.size() * 4);
  EXPECT_EQ(backend->compute(chain.graph), Status::kSuccess);
  chain.check(3);
  EXPECT_THAT([&] { other->compute(chain.graph); }, refused);
  backend->plans().clear();
  other->plans().plan(chain.graph);
  tensor_set(*chain.x, chain.values.data(), 0, chain.values.size() * 4);
  EXPECT_EQ(other->compute(chain.graph), Status::kSuccess);
  chain.check(3);
}

TEST(CpuBackend, RejectsRangesOutsideTensorsWhenWorkIsQueued) {
  const test::CpuConfiguration configuration("devices=1,threads=1");
  const auto backend = cpu(0).init();
  Chain chain(100, 1);
  const auto plan = backend->create_plan(chain.graph);
  EXPECT_THROW(backend->set_async(*chain.x, chain.values.data(), 4, 400), InvalidArgument);
  EXPECT_THROW(backend->get_async(*chain.x, chain.values.data(), 400, 4), InvalidArgument);
  backend->set_async(*chain.x, chain.values.data(), 0, 400);
  backend->compute_async(*plan);
  backend->synchronize();
  chain.check(1);
}

TEST(CpuBackend, RejectsInvalidGraphRanges) {
  const test::CpuConfiguration configuration("devices=1,threads=1");
  const auto backend = cpu(0).init();
  Chain chain(100, 2);
  for (const GraphRange& range : {GraphRange{}, GraphRange{&chain.graph, 0, 3}, GraphRange{&chain.graph, -1, 1},
                                  GraphRange{&chain.graph, 2, 1}}) {
    EXPECT_THROW(backend->create_plan(range), InvalidArgument);
  }
  scale(chain.graph, chain.y, {});  // a rejected plan must not freeze the graph
}

TEST(CpuBackend, InsufficientMemoryHasItsOwnStatus) {
  const test::CpuConfiguration configuration("devices=1,threads=1,memory=1K");
  const auto backend = cpu(0).init();
  Chain chain(100000, 2);
  EXPECT_EQ(backend->compute(chain.graph), Status::kAllocationFailed);
}

TEST(CpuBackend, PlansOnTwoDevicesRunConcurrently) {
  const test::CpuConfiguration configuration("devices=2,threads=1");
  // The plan of one device pauses until the plan of the other device has finished. In the second round, the devices
  // exchange their roles.
  for (int slow : {0, 1}) {
    const auto busy = cpu(slow).init();
    const auto quick = cpu(1 - slow).init();
    Chain longer(4000, 40), shorter(1000, 1);
    const auto long_plan = busy->create_plan(longer.graph);
    const auto short_plan = quick->create_plan(shorter.graph);
    tensor_set(*longer.x, longer.values.data(), 0, longer.values.size() * 4);
    tensor_set(*shorter.x, shorter.values.data(), 0, shorter.values.size() * 4);
    test::Gate gate;
    std::atomic<bool> begun{false};
    busy->set_abort_callback([&, task = gate.task()] {
      begun = true;
      task.run(task.object, task.argument, false);
      return false;
    });
    busy->compute_async(*long_plan);
    while (!begun) std::this_thread::yield();
    quick->compute_async(*short_plan);
    quick->synchronize();
    EXPECT_FALSE(gate.expired) << "the short plan waited for the long one";
    gate.open = true;
    busy->synchronize();
    longer.check(40);
    shorter.check(1);
  }
}

TEST(CpuBackend, SixteenDevicesOnFewCoresFinish) {
  const test::CpuConfiguration configuration("devices=16,threads=2");
  std::vector<std::unique_ptr<Backend>> backends;
  std::vector<std::unique_ptr<Chain>> chains;
  std::vector<std::unique_ptr<GraphPlan>> plans;
  for (int i = 0; i < 16; ++i) {
    backends.push_back(cpu(i).init());
    chains.push_back(std::make_unique<Chain>(20000, 10));
    plans.push_back(backends.back()->create_plan(chains.back()->graph));
  }
  // The devices form a ring. In each round, every device gets its input from the previous device.
  const size_t bytes = chains[0]->values.size() * 4;
  backends[0]->set_async(*chains[0]->x, chains[0]->values.data(), 0, bytes);
  for (int round = 0; round < 5; ++round) {
    for (size_t i = 0; i < 16; ++i) {
      const size_t next = (i + 1) % 16;
      backends[i]->compute_async(*plans[i]);
      backends[i]->copy_async(*chains[i]->y, *backends[next], *chains[next]->x);
    }
  }
  for (auto& backend : backends) backend->synchronize();
  chains[15]->check(10 * 16 * 5);
}

TEST(CpuBackend, StepBeginsAfterPreviousStepEnds) {
  // In each step, every part writes the number of the step into its slot. In the next step, every part checks all
  // slots.
  static std::atomic<int> wrong;
  static std::atomic<int> most_parts;
  wrong = 0;
  most_parts = 0;
  const auto check = [](const TeamContext& ctx, Tensor& node) {
    most_parts = std::max(most_parts.load(), ctx.parts);
    for (int i = 0; i < ctx.parts; ++i) {
      if (reinterpret_cast<int*>(ctx.workspace)[i] != node.id) ++wrong;
    }
  };
  const auto write = [](const TeamContext& ctx, Tensor& node) {
    reinterpret_cast<int*>(ctx.workspace)[ctx.part] = node.id + 1;
  };
  const auto reset = [](const TeamContext& ctx, Tensor&) {
    if (ctx.parts != 1 || ctx.part != 0) ++wrong;
    for (int i = 0; i < 4; ++i) reinterpret_cast<int*>(ctx.workspace)[i] = 0;
  };
  int slots[4] = {};
  auto* workspace = reinterpret_cast<std::byte*>(slots);
  std::vector<Tensor> nodes(30);
  std::vector<Step> steps;
  for (int i = 0; i < 30; ++i) {
    nodes[i].id = i % 10;
    if (i % 10 == 0) steps.push_back({reset, &nodes[i], workspace, true});
    steps.push_back({check, &nodes[i], workspace});
    steps.push_back({write, &nodes[i], workspace});
  }
  Team team(4);
  team.lead([&] {
    for (int repeat = 0; repeat < 20; ++repeat) team.run(steps, 4);
  });
  EXPECT_EQ(wrong, 0);
  EXPECT_EQ(most_parts, 4);
}

TEST(CpuBackend, SmallNodesRunOnOneThread) {
  Graph graph;
  Tensor* x = graph.input("x", DType::kF32, {8, 1, 1, 1});
  Tensor* large = graph.input("large", DType::kF32, {1000000, 1, 1, 1});
  Tensor* empty = graph.input("empty", DType::kF32, {0, 1, 1, 1});
  scale(graph, scale(graph, x, {2, 0}), {2, 0});
  scale(graph, empty, {2, 0});
  reshape(graph, large, {1000, 1000, 1, 1});
  scale(graph, large, {2, 0});
  scale(graph, x, {3, 0});
  const auto steps = compile_steps(whole(graph), 2);
  ASSERT_EQ(steps.size(), 4U) << "views and empty results are not run";
  EXPECT_TRUE(steps[0].alone && steps[1].alone);
  EXPECT_FALSE(steps[2].alone);
  EXPECT_TRUE(steps[3].alone);
  for (const Step& step : compile_steps(whole(graph), 1)) EXPECT_TRUE(step.alone);
}

TEST(CpuBackend, ResultsDoNotDependOnTeamSize) {
  std::vector<std::vector<float>> results;
  for (const char* params : {"threads=1", "threads=2", "threads=5"}) {
    const auto backend = cpu(0).init(params);
    Graph graph;
    Tensor* x = graph.input("x", DType::kF32, {300, 200, 1, 1});
    Tensor* y = graph.output(soft_max(graph, rms_norm(graph, x, {}), nullptr, nullptr, {}));
    const auto plan = backend->create_plan(graph);
    std::vector<float> values(60000);
    for (size_t i = 0; i < values.size(); ++i) values[i] = static_cast<float>((i * 7919) % 1013) / 100.0f;
    backend->set_async(*x, values.data(), 0, values.size() * 4);
    backend->compute_async(*plan);
    backend->get_async(*y, values.data(), 0, values.size() * 4);
    backend->synchronize();
    results.push_back(values);
  }
  EXPECT_EQ(results[0], results[1]);
  EXPECT_EQ(results[0], results[2]);
}

TEST(CpuBackend, DestroyingAQueuedPlanWaitsForItsRun) {
  const auto backend = cpu(0).init();
  Chain chain(1000, 3);
  auto plan = backend->create_plan(chain.graph);
  std::atomic<bool> open{false};
  backend->enqueue({[](void* object, const void*, bool) {
                      while (!*static_cast<std::atomic<bool>*>(object)) std::this_thread::sleep_for(100us);
                    },
                    &open, nullptr});
  backend->compute_async(*plan);
  std::thread opener([&] {
    std::this_thread::sleep_for(5ms);
    open = true;
  });
  plan.reset();  // waits for the end of the run
  EXPECT_TRUE(open);
  opener.join();
  backend->synchronize();
}

TEST(CpuBackend, QueuedWorkFailsIfItsPlanWasDestroyed) {
  const auto backend = cpu(0).init();
  ComputeArena arena(*backend);  // owns the memory, so that the memory outlives the plan
  Chain chain(100, 2);
  for (const bool writes : {false, true}) {
    auto plan = backend->create_plan(chain.graph, {.arena = &arena});
    test::Gate gate;
    ASSERT_TRUE(backend->enqueue(gate.task()));
    if (writes) {
      backend->set_async(*chain.x, chain.values.data(), 0, 400);
    } else {
      backend->get_async(*chain.y, chain.values.data(), 0, 400);
    }
    plan.reset();
    gate.open = true;
    EXPECT_THAT([&] { backend->synchronize(); },
                testing::ThrowsMessage<InvalidArgument>(testing::HasSubstr("no memory")));
  }
}

TEST(CpuBackend, WaitMayOutliveTheAwaitedStream) {
  const auto event = cpu(0).new_event();
  const auto second = cpu(0).init();
  for (int round = 0; round < 20; ++round) {
    const auto first = cpu(0).init();
    event->record(*first);
    event->wait(*second);
  }
  event->wait(*second);
  event->synchronize();
  second->synchronize();
}

TEST(CpuBackend, WorksWithStreamsOfOtherFamilies) {
  const auto backend = cpu(0).init();
  const auto null = Registry::instance().init("NULL0");
  TensorContext context;
  Tensor* x = context.add("x", DType::kF32, {64, 1, 1, 1});
  Tensor* y = context.add("y", DType::kF32, {64, 1, 1, 1});
  const auto here = allocate_tensors({&x, 1}, cpu(0).buffer_type(), Usage::kAny);
  const auto there = allocate_tensors({&y, 1}, null->device().buffer_type(), Usage::kAny);
  std::vector<float> values(64, 2.5f), seen(64);
  backend->set_async(*x, values.data(), 0, 256);
  backend->copy_async(*x, *null, *y);
  const auto event = cpu(0).new_event();
  event->record(*backend);
  event->wait(*null);
  tensor_get(*y, seen.data(), 0, 256);
  EXPECT_EQ(seen, values);
  EXPECT_THROW(event->record(*null), InvalidArgument);
}

TEST(CpuBackend, RejectsUnplacedTensorsWhenWorkIsQueued) {
  const auto backend = cpu(0).init();
  TensorContext context;
  Tensor* x = context.add("x", DType::kF32, {64, 1, 1, 1});
  float value = 0;
  EXPECT_THROW(backend->set_async(*x, &value, 0, 4), InvalidArgument) << "no memory";
  EXPECT_THROW(backend->get_async(*x, &value, 0, 4), InvalidArgument);
  EXPECT_THROW(backend->copy_async(*x, *backend, *x), InvalidArgument);
}

}  // namespace
}  // namespace shoal::cpu
