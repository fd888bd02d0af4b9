// Tests of failures in a scheduler. Each failure must give a status or exception that names the cause. After the
// failure, the scheduler must work again.
#include <gmock/gmock.h>

#include "base/error.h"
#include "sched/scheduler.h"
#include "tests/meta/llama_graph.h"
#include "tests/sched/proxy.h"
#include "tests/sched/rig.h"
#include "tests/support/null/null_device.h"

namespace shoal::sched {
namespace {

using test::ProxyBackend;
using test::ProxyDevice;
using test::Rig;
using test::World;
using testing::HasSubstr;
using testing::ThrowsMessage;

constexpr const char* kThreeLayers = R"(
input %x f32 [64, 8]
weight %w0 f32 [64, 96]
weight %w1 f32 [96, 32]
weight %w2 f32 [32, 32]
%h = mul_mat(%w0, %x)
%y = mul_mat(%w1, %h)
%z = mul_mat(%w2, %y)
output %z
)";

/// A host task that always fails.
void broken(void*, const void*, bool failed) {
  if (!failed) fail<DeviceError>("the disk is on fire");
}

struct SchedulerFailures : testing::Test {
  void expect_works(Scheduler& scheduler, World& world, Graph& graph, const std::string& text) {
    scheduler.allocate(graph);
    for (int run = 0; run < 3; ++run) {
      world.fill_inputs(graph);
      world.fill_caches();
      ASSERT_EQ(scheduler.compute(graph), Status::kSuccess);
      test::expect_close(test::outputs(graph), test::on_one(text, Rig::cpu(5)));
    }
  }
  Rig rig{6};
};

TEST_F(SchedulerFailures, AreThrownFromAnyBackend) {
  ProxyDevice a{Rig::cpu(0), "A"}, b{Rig::cpu(1), "B"};
  const auto a_backend = a.init(""), b_backend = b.init("");
  World world({{"w1", &b}, {"*", &a}});
  Graph& graph = world.add(kThreeLayers);
  for (int copies : {1, 3}) {
    Scheduler scheduler({a_backend.get(), b_backend.get()}, {.copies = copies});
    scheduler.allocate(graph);
    EXPECT_EQ(scheduler.splits(), 3);
    for (Backend* backend : {a_backend.get(), b_backend.get()}) {
      world.fill_inputs(graph);
      ASSERT_TRUE(backend->enqueue({broken, nullptr, nullptr}));
      scheduler.compute_async(graph);
      EXPECT_THAT([&] { scheduler.synchronize(); }, ThrowsMessage<DeviceError>(HasSubstr("the disk is on fire")));
      ASSERT_TRUE(backend->enqueue({broken, nullptr, nullptr}));
      EXPECT_EQ(scheduler.compute(graph), Status::kFailed);
      expect_works(scheduler, world, graph, kThreeLayers);
    }
    EXPECT_EQ(scheduler.plans_made(), 1U);
  }
}

TEST_F(SchedulerFailures, ContainNameOfFailingNode) {
  auto& null_device = Registry::instance().find_family("NULL")->create_device("");
  const auto failing = null_device.init("fail_node=y");
  const auto host = Rig::cpu(0).init();
  World world({{"w1", &null_device}, {"*", &Rig::cpu(0)}});
  Graph& graph = world.add(kThreeLayers);
  Scheduler scheduler({failing.get(), host.get()});
  scheduler.allocate(graph);
  world.fill_inputs(graph);
  const auto run = [&] {
    scheduler.compute_async(graph);  // if a device has no events, this call waits
    scheduler.synchronize();
  };
  for (int i = 0; i < 3; ++i) {
    EXPECT_THAT(run, ThrowsMessage<DeviceError>(HasSubstr("node y failed")));
    EXPECT_NO_THROW(scheduler.synchronize());
  }
  EXPECT_EQ(scheduler.compute(graph), Status::kFailed);
}

TEST_F(SchedulerFailures, ThrowCauseOfFailingMetaRank) {
  const auto mesh = Rig::mesh({0, 1}, test::llama_layouts({2, 2}));
  const auto meta = mesh->init(), host = Rig::cpu(2).init();
  World world({{"head", &Rig::cpu(2)}, {"*", mesh.get()}});
  const std::string text = test::llama_graph(3);
  Graph& graph = world.add(text);
  Scheduler scheduler({meta.get(), host.get()});
  for (Backend* stream : {meta->members()[0], meta->members()[1], host.get()}) {
    scheduler.allocate(graph);
    world.fill_inputs(graph);
    ASSERT_TRUE(stream->enqueue({broken, nullptr, nullptr}));
    scheduler.compute_async(graph);
    EXPECT_THAT([&] { scheduler.synchronize(); }, ThrowsMessage<DeviceError>(HasSubstr("the disk is on fire")))
        << "the error comes from the rank that failed first";
    expect_works(scheduler, world, graph, text);
  }
}

TEST_F(SchedulerFailures, AreReportedDuringExpertSelection) {
  const std::string text = test::kChosenExperts;
  ProxyDevice a{Rig::cpu(0), "A"}, b{Rig::cpu(1), "B"};
  a.wants = [](const Tensor& node) { return node.op == Op::kMulMatId; };
  const auto a_backend = a.init(""), b_backend = b.init("");
  World world({{"router", &a}, {"*", &b}});
  Graph& graph = world.add(text);
  Scheduler scheduler({a_backend.get(), b_backend.get()});
  scheduler.allocate(graph);
  world.fill_inputs(graph);
  ASSERT_TRUE(a_backend->enqueue({broken, nullptr, nullptr}));
  EXPECT_EQ(scheduler.compute(graph), Status::kFailed) << "compute_async waits for the ids";
  expect_works(scheduler, world, graph, text);
}

TEST_F(SchedulerFailures, LeaveNoMemoryAllocated) {
  test::CpuConfiguration small("devices=6,threads=1,memory=600K");
  const auto first = Rig::cpu(0).init(), second = Rig::cpu(1).init();
  World world({{"w1", &Rig::cpu(1)}, {"*", &Rig::cpu(0)}});
  std::string wide = kThreeLayers;
  wide.replace(wide.find("[64, 8]"), 7, "[64, 2000]");
  Graph &large = world.add(wide), &fits = world.add(kThreeLayers);
  const size_t free0 = Rig::cpu(0).memory().free, free1 = Rig::cpu(1).memory().free;
  Scheduler scheduler({first.get(), second.get()});
  EXPECT_FALSE(scheduler.reserve(large));
  EXPECT_EQ(Rig::cpu(0).memory().free, free0);
  EXPECT_EQ(Rig::cpu(1).memory().free, free1);
  EXPECT_THROW(scheduler.allocate(large), OutOfMemory);
  EXPECT_EQ(scheduler.compute(large), Status::kAllocationFailed);
  EXPECT_EQ(large.find("z")->buffer, nullptr);
  EXPECT_TRUE(scheduler.reserve(fits));
  world.fill_inputs(fits);
  EXPECT_EQ(scheduler.compute(fits), Status::kSuccess);
  EXPECT_EQ(scheduler.compute(large), Status::kAllocationFailed);
  EXPECT_EQ(scheduler.compute(fits), Status::kSuccess);
}

TEST_F(SchedulerFailures, LeaveNoNodePlacedIfPlanningFails) {
  World world({{"*", &Rig::cpu(0)}});
  Graph& graph = world.add(kThreeLayers);
  ProxyDevice device{Rig::cpu(0), "PICKY"};
  device.reads_all = true;
  device.refuses = [](const Tensor& node) { return node.name == "z"; };
  const auto picky = device.init("");
  Scheduler scheduler({picky.get()});
  EXPECT_THROW(scheduler.compute_async(graph), DeviceError);
  EXPECT_EQ(scheduler.compute(graph), Status::kFailed);
  EXPECT_EQ(graph.find("z")->buffer, nullptr);
  device.refuses = {};
  expect_works(scheduler, world, graph, kThreeLayers);
}

TEST_F(SchedulerFailures, AbortCallbackStopsRun) {
  ProxyDevice a{Rig::cpu(0), "A"}, b{Rig::cpu(1), "B"};
  const auto a_backend = a.init(""), b_backend = b.init("");
  World world({{"w1", &b}, {"*", &a}});
  Graph& graph = world.add(kThreeLayers);
  Scheduler scheduler({a_backend.get(), b_backend.get()});
  scheduler.allocate(graph);
  world.fill_inputs(graph);
  for (Backend* backend : {a_backend.get(), b_backend.get()}) {
    ASSERT_TRUE(backend->set_abort_callback([] { return true; }));
    EXPECT_EQ(scheduler.compute(graph), Status::kAborted);
    ASSERT_TRUE(backend->set_abort_callback({}));
    expect_works(scheduler, world, graph, kThreeLayers);
  }
}

}  // namespace
}  // namespace shoal::sched
