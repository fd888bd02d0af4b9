#include "meta/device/meta_backend.h"

#include <gmock/gmock.h>

#include <cstring>
#include <thread>

#include "base/error.h"
#include "graph/ops/ops.h"
#include "tests/meta/llama_graph.h"
#include "tests/meta/mesh.h"
#include "tests/sched/proxy.h"
#include "tests/support/allocation_count.h"
#include "tests/support/faulty_communicator.h"
#include "tests/support/time_outs.h"

namespace shoal::meta {
namespace {

using namespace std::chrono_literals;
using testing::AllOf;
using testing::HasSubstr;
using testing::ThrowsMessage;

/// The decoder on two ranks, with a plan and inputs. One simple device computes the expected logits.
struct MetaBackendRuns : testing::Test {
  static MetaOptions options(std::chrono::milliseconds timeout) {
    return {.member_params = {}, .comm_timeout = timeout};
  }

  MetaBackendRuns() {
    const auto reference = mesh.other().init();
    Loaded one(text, mesh.other());
    const auto reference_plan = reference->create_plan(one.graph);
    one.fill_inputs();
    reference->compute_async(*reference_plan);
    reference->synchronize();
    expected = test::read_floats(*one.graph.find("logits"));
  }
  using Loaded = test::Loaded;

  void expect_right() {
    const auto got = test::read_floats(*loaded.graph.find("logits"));
    ASSERT_EQ(got.size(), expected.size());
    for (size_t i = 0; i < got.size(); ++i) EXPECT_NEAR(got[i], expected[i], 1e-3) << i;
  }
  /// Checks that the first run after a failure computes the expected logits.
  void expect_recovered() {
    loaded.fill_inputs();
    backend->compute_async(*plan);
    backend->synchronize();
    expect_right();
  }

  const std::string text = test::llama_graph(2);
  test::CpuMesh mesh{2, test::llama_layouts({3, 1}), options(20s)};
  Loaded loaded{text, *mesh.device};
  const std::unique_ptr<Backend> backend = mesh.device->init("threads=1");
  std::unique_ptr<GraphPlan> plan = backend->create_plan(loaded.graph);
  std::vector<float> expected;
};

TEST_F(MetaBackendRuns, RunningPlanAllocatesNothing) {
  if (!test::counts_allocations()) GTEST_SKIP() << "the sanitizer replaces operator new";
  loaded.fill_inputs();
  const auto run = [&](int times) {
    for (int i = 0; i < times; ++i) {
      backend->compute_async(*plan);
      if (i % 3 == 0) backend->synchronize();
    }
    backend->synchronize();
  };
  run(200);
  const int64_t before = test::allocation_count();
  EXPECT_GT(before, 0);
  run(200);
  EXPECT_EQ(test::allocation_count() - before, 0);
  expect_right();
}

TEST_F(MetaBackendRuns, FindingCachedPlanAllocatesNothing) {
  if (!test::counts_allocations()) GTEST_SKIP() << "the sanitizer replaces operator new";
  plan.reset();
  backend->plans().plan(loaded.graph);
  loaded.fill_inputs();
  ASSERT_EQ(backend->compute(loaded.graph), Status::kSuccess);
  const int64_t before = test::allocation_count();
  for (int i = 0; i < 100; ++i) backend->compute_async(loaded.graph);
  backend->synchronize();
  EXPECT_EQ(test::allocation_count() - before, 0);
  EXPECT_EQ(backend->plans().made(), 1u);
  expect_right();
}

TEST_F(MetaBackendRuns, QueuesWithoutWaiting) {
  loaded.fill_inputs();
  for (size_t member : {0u, 1u}) {
    test::Gate gate;
    Tensor& logits = *loaded.graph.find("logits");
    logits.buffer->memset(logits, 0, 0, logits.bytes());
    ASSERT_TRUE(backend->members()[member]->enqueue(gate.task()));
    backend->compute_async(*plan);
    backend->compute_async(*plan);
    std::vector<float> queued(expected.size());
    backend->get_async(logits, queued.data(), 0, logits.bytes());
    EXPECT_FALSE(gate.open) << "everything was queued while a member was blocked";
    EXPECT_THAT(queued, testing::Each(0.0f));
    gate.open = true;
    backend->synchronize();
    expect_right();
    EXPECT_EQ(queued, test::read_floats(logits));
  }
}

TEST_F(MetaBackendRuns, RunningPlanMayBeDestroyed) {
  loaded.fill_inputs();
  test::Gate gate;
  ASSERT_TRUE(backend->members()[1]->enqueue(gate.task()));
  backend->compute_async(*plan);
  std::thread opener([&] {
    std::this_thread::sleep_for(20ms);
    gate.open = true;
  });
  plan.reset();
  EXPECT_TRUE(gate.open) << "the destructor waits for queued work";
  opener.join();
  backend->synchronize();
  plan = backend->create_plan(loaded.graph);
  expect_recovered();
}

void boom(void*, const void*, bool failed) {
  if (!failed) throw DeviceError("the disk is on fire");
}

TEST_F(MetaBackendRuns, ThrowsMemberFailureUnchanged) {
  for (size_t member : {0u, 1u}) {
    SCOPED_TRACE(member);
    const auto begin = std::chrono::steady_clock::now();
    ASSERT_TRUE(backend->members()[member]->enqueue({boom, nullptr, nullptr}));
    loaded.fill_inputs();
    EXPECT_THAT(
        [&] {
          backend->compute_async(*plan);
          backend->synchronize();
        },
        ThrowsMessage<DeviceError>(HasSubstr("the disk is on fire")));
    EXPECT_LT(std::chrono::steady_clock::now() - begin, 10s) << "no rank waited for the timeout";
    backend->synchronize();  // does not throw, because each failure is thrown only once
    expect_recovered();
  }
}

TEST_F(MetaBackendRuns, RunsQueuedAfterFailureAreSkipped) {
  loaded.fill_inputs();
  backend->compute_async(*plan);
  ASSERT_TRUE(backend->members()[0]->enqueue({boom, nullptr, nullptr}));
  backend->compute_async(*plan);
  backend->compute_async(*plan);
  EXPECT_THROW(backend->synchronize(), DeviceError);
  expect_recovered();
}

TEST_F(MetaBackendRuns, ComputeReturnsFailureAsStatus) {
  loaded.fill_inputs();
  ASSERT_TRUE(backend->members()[1]->enqueue({boom, nullptr, nullptr}));
  EXPECT_EQ(backend->compute(*plan), Status::kFailed);
  EXPECT_EQ(backend->compute(*plan), Status::kSuccess);
  // A run after a failure creates a new communicator. This run itself may also fail.
  for (int i = 0; i < 3; ++i) {
    ASSERT_TRUE(backend->members()[1]->enqueue({boom, nullptr, nullptr}));
    EXPECT_EQ(backend->compute(*plan), Status::kFailed);
  }
  expect_recovered();
}

TEST_F(MetaBackendRuns, RefusesPlansOfOtherBackends) {
  const auto another = mesh.device->init("threads=1");
  EXPECT_THAT([&] { another->compute_async(*plan); },
              ThrowsMessage<InvalidArgument>(HasSubstr("the plan was made by another backend")));
  Graph graph;
  graph.output(scale(graph, graph.input("x", DType::kF32, {4, 1, 1, 1}), {2, 0}));
  const auto simple = mesh.other().init();
  const auto foreign = simple->create_plan(graph);
  EXPECT_THROW(backend->compute_async(*foreign), InvalidArgument);
  EXPECT_THROW(plan_of(*foreign), InvalidArgument);
}

/// Each range of the decoder has its own plan. The plans together compute the same result as one plan of the whole
/// decoder.
TEST_F(MetaBackendRuns, RangesGiveSameResultAsWholeGraph) {
  const int count = static_cast<int>(loaded.graph.nodes().size());
  plan.reset();
  for (int first = 1; first < count; first += 5) {
    for (int second : {first, (first + count) / 2, count}) {
      SCOPED_TRACE(fmt::format("[0, {}) [{}, {}) [{}, {})", first, first, second, second, count));
      std::vector<std::unique_ptr<GraphPlan>> parts;
      for (const auto& [begin, end] : {std::pair(0, first), {first, second}, {second, count}}) {
        parts.push_back(backend->create_plan({&loaded.graph, begin, end}));
      }
      loaded.fill_inputs();
      for (const auto& part : parts) backend->compute_async(*part);
      backend->synchronize();
      expect_right();
      while (!parts.empty()) parts.pop_back();
    }
  }
}

TEST_F(MetaBackendRuns, RefusesTensorsOfAnotherMetaDevice) {
  const auto another = MetaDevice::create({mesh.members[1], &mesh.other()}, test::callback_for({}));
  const auto elsewhere = another->init("threads=1");
  plan.reset();
  EXPECT_THAT(
      [&] { elsewhere->create_plan(loaded.graph); },
      ThrowsMessage<InvalidArgument>(HasSubstr("is stored on META(CPU0,CPU1) and cannot be used on META(CPU1,CPU2)")));
  plan = backend->create_plan(loaded.graph);
  expect_recovered();
}

TEST_F(MetaBackendRuns, RefusesCollectivesInUserGraphs) {
  const auto refused =
      ThrowsMessage<InvalidArgument>(AllOf(HasSubstr("sum"), HasSubstr("is a collective"), HasSubstr("omit the node")));
  const auto single = mesh.other().init("threads=1");
  for (Backend* each : {backend.get(), single.get()}) {
    Graph graph("own");
    graph.output(collective(graph, Collective::kAllReduce, graph.input("x", DType::kF32, {8, 1, 1, 1}), {}, "sum"));
    EXPECT_THAT([&] { each->create_plan(graph); }, refused);
  }
}

TEST_F(MetaBackendRuns, RefusesSecondPlanOfGraph) {
  const auto second = mesh.device->init("threads=1");
  EXPECT_THAT([&] { second->create_plan(loaded.graph); },
              ThrowsMessage<InvalidArgument>(HasSubstr("already has a plan")));
  expect_recovered();
}

TEST(MetaBackendPartial, TensorIsWrittenAndReadInStreamOrder) {
  const test::CpuMesh mesh(3, {{"w", Layout::partial()}});
  TensorContext context;
  Tensor* w = context.add("w", DType::kF32, {9000, 1, 1, 1});
  const auto memory = allocate_tensors({&w, 1}, mesh.device->buffer_type(), Usage::kWeights);
  const auto backend = mesh.device->init();
  std::vector<float> first(9000, 1.5f), second(9000), seen(9000), later(9000);
  for (size_t i = 0; i < second.size(); ++i) second[i] = static_cast<float>(i);
  std::vector<std::byte> odd(101);
  for (int held : {0, 1, 2}) {  // the index of the delayed rank
    test::Gate gate;
    ASSERT_TRUE(backend->members()[held]->enqueue(gate.task()));
    backend->set_async(*w, first.data(), 0, 36000);
    backend->get_async(*w, seen.data(), 0, 36000);
    backend->set_async(*w, second.data(), 0, 36000);
    backend->get_async(*w, later.data(), 0, 36000);
    backend->get_async(*w, odd.data(), 5, odd.size());  // the range starts and ends inside an element
    gate.open = true;
    backend->synchronize();
    EXPECT_EQ(seen, first) << held;
    EXPECT_EQ(later, second) << held;
    EXPECT_EQ(std::memcmp(odd.data(), reinterpret_cast<const std::byte*>(second.data()) + 5, odd.size()), 0) << held;
  }
}

/// The decoder with a communicator that counts its calls and can inject a fault.
struct Faulty {
  explicit Faulty(const Fault& fault, std::chrono::milliseconds timeout = 20s)
      : mesh(2, test::llama_layouts({3, 1}), options(fault, timeout)), loaded(test::llama_graph(1), *mesh.device) {}
  std::unique_ptr<GraphPlan> plan(Backend& backend) {
    auto plan = backend.create_plan(loaded.graph);
    loaded.fill_inputs();
    return plan;
  }
  MetaOptions options(const Fault& fault, std::chrono::milliseconds timeout) {
    MetaOptions made{.member_params = {}, .comm_timeout = timeout};
    made.communicator = [this, fault](std::span<Backend* const> ranks, const collectives::Options& options) {
      auto communicator = std::make_unique<FaultyCommunicator>(collectives::make_host_communicator(ranks, options),
                                                               ranks, made_++ == 0 ? fault : Fault{});
      used = communicator.get();
      return communicator;
    };
    return made;
  }
  int made_ = 0;
  FaultyCommunicator* used = nullptr;  ///< the latest communicator
  test::CpuMesh mesh;
  test::Loaded loaded;
};

TEST(MetaBackendCommunicator, RunsExactlyThePlannedCollectives) {
  Faulty faulty({});
  const auto backend = faulty.mesh.device->init();
  const auto plan = faulty.plan(*backend);
  for (int runs = 1; runs <= 3; ++runs) {
    backend->compute_async(*plan);
    backend->synchronize();
    for (int rank = 0; rank < 2; ++rank) {
      EXPECT_EQ(faulty.used->calls(rank, Collective::kAllReduce), runs * plan_of(*plan).count(Collective::kAllReduce));
      EXPECT_EQ(faulty.used->calls(rank), runs * plan_of(*plan).count(Collective::kAllReduce))
          << "the plan uses no other collectives";
    }
  }
}

TEST(MetaBackendCommunicator, ErrorNamesStalledRankAndNextRunSucceeds) {
  Faulty faulty({Fault::kStall, 1, 1, 600ms}, 150ms);
  const auto backend = faulty.mesh.device->init();
  const auto plan = faulty.plan(*backend);
  backend->compute_async(*plan);
  EXPECT_THAT([&] { backend->synchronize(); }, ThrowsMessage<CommError>(HasSubstr("rank 1")));
  backend->compute_async(*plan);
  backend->synchronize();
  EXPECT_EQ(faulty.made_, 2) << "a failed communicator is not reused";
}

TEST(MetaBackendCommunicator, CorruptedCollectiveChangesLogits) {
  std::vector<float> logits[2];
  for (int i = 0; i < 2; ++i) {
    Faulty one(i == 0 ? Fault{} : Fault{Fault::kCorrupt, 0, 0, 0ms});
    const auto backend = one.mesh.device->init();
    const auto plan = one.plan(*backend);
    backend->compute_async(*plan);
    backend->synchronize();
    logits[i] = test::read_floats(*one.loaded.graph.find("logits"));
  }
  EXPECT_NE(logits[0], logits[1]);
}

TEST(MetaBackendTimeout, ErrorNamesMissingRank) {
  const test::CpuMesh mesh(2, test::llama_layouts({3, 1}),
                           {.member_params = {}, .comm_timeout = 1500ms});  // long enough for runs without a fault
  test::Loaded loaded(test::llama_graph(1), *mesh.device);
  const auto backend = mesh.device->init("threads=1");
  const auto plan = backend->create_plan(loaded.graph);
  loaded.fill_inputs();
  backend->compute_async(*plan);
  backend->synchronize();
  const auto expected = test::read_floats(*loaded.graph.find("logits"));
  test::Gate gate;
  ASSERT_TRUE(backend->members()[1]->enqueue(gate.task()));
  backend->compute_async(*plan);
  // Rank 1 arrives after the timeout of rank 0.
  ASSERT_TRUE(backend->members()[0]->enqueue({[](void* object, const void*, bool failed) {
                                                EXPECT_TRUE(failed);
                                                static_cast<test::Gate*>(object)->open = true;
                                              },
                                              &gate, nullptr}));
  EXPECT_THAT([&] { backend->synchronize(); }, ThrowsMessage<CommError>(HasSubstr("rank 1")));
  backend->compute_async(*plan);
  backend->synchronize();
  EXPECT_EQ(test::read_floats(*loaded.graph.find("logits")), expected);
}

struct MetaBackendLateRank : testing::Test {
  void compute() {
    loaded.fill_inputs();
    backend->compute_async(*plan);
    backend->synchronize();
  }
  std::vector<float> logits() const { return test::read_floats(*loaded.graph.find("logits")); }

  const test::CpuMesh mesh{2, test::llama_layouts({3, 1}), {.member_params = {}, .comm_timeout = 2s}};
  test::Loaded loaded{test::llama_graph(1), *mesh.device};
  const std::unique_ptr<Backend> backend = mesh.device->init("threads=1");
  const std::unique_ptr<GraphPlan> plan = backend->create_plan(loaded.graph);
  test::Gate gate;
  test::TimeOuts time_outs{[&] { gate.open = true; }};
  const std::string message = "[" + mesh.device->name() +
                              "] rank 1 of 2 did not finish within 2.000 s after the other ranks; " +
                              std::string(kTimeoutRemedy);
};

TEST_F(MetaBackendLateRank, IsReportedUntilItReturns) {
  backend->compute_async(*plan);
  ASSERT_TRUE(backend->members()[1]->enqueue(gate.task()));
  backend->synchronize();
  EXPECT_THAT(time_outs.messages(), testing::ElementsAre(message));
  EXPECT_EQ(open_timeouts(), 0);
}

TEST_F(MetaBackendLateRank, IsReportedWhenOtherRanksWaitForIt) {
  backend->compute_async(*plan);
  ASSERT_TRUE(backend->members()[1]->enqueue(gate.task()));
  ASSERT_TRUE(backend->enqueue({[](void*, const void*, bool) {}, nullptr, nullptr}));  // the task runs on rank 0 after
                                                                                       // all earlier work of both ranks
  backend->synchronize();
  EXPECT_THAT(time_outs.messages(), testing::ElementsAre(message));
  EXPECT_EQ(open_timeouts(), 0);
}

TEST_F(MetaBackendLateRank, IsNotReportedIfItWaitsForAnotherDevice) {
  const auto other = mesh.other().init();
  const auto event = mesh.other().new_event();
  ASSERT_TRUE(other->enqueue(gate.task()));
  event->record(*other);
  backend->compute_async(*plan);
  event->wait(*backend->members()[1]);
  std::thread opens([&] {
    std::this_thread::sleep_for(3s);
    gate.open = true;
  });
  backend->synchronize();
  opens.join();
  EXPECT_THAT(time_outs.messages(), testing::IsEmpty());
}

TEST_F(MetaBackendLateRank, IsNotReportedIfItMakesProgress) {
  const auto sleep = [](void*, const void*, bool) { std::this_thread::sleep_for(600ms); };
  backend->compute_async(*plan);
  for (int i = 0; i < 6; ++i) ASSERT_TRUE(backend->members()[1]->enqueue({sleep, nullptr, nullptr}));
  backend->synchronize();
  EXPECT_THAT(time_outs.messages(), testing::IsEmpty());
}

TEST(MetaBackendMembers, AreNotReportedAsLateWithoutQueueState) {
  const test::CpuConfiguration configuration("devices=2,threads=1");
  test::ProxyDevice silent(Registry::instance().device("CPU1"));
  const auto device =
      MetaDevice::create({&Registry::instance().device("CPU0"), &silent},
                         test::callback_for(test::llama_layouts({3, 1})), {.member_params = {}, .comm_timeout = 2s});
  test::Loaded loaded(test::llama_graph(1), *device);
  const auto backend = device->init();
  const auto plan = backend->create_plan(loaded.graph);
  loaded.fill_inputs();
  backend->compute_async(*plan);
  test::Gate gate;
  const test::TimeOuts time_outs;
  ASSERT_TRUE(backend->members()[0]->enqueue(gate.task()));
  std::jthread opens([&] {
    std::this_thread::sleep_for(3s);
    gate.open = true;
  });
  backend->synchronize();
  EXPECT_THAT(time_outs.messages(), testing::IsEmpty());
}

TEST_F(MetaBackendLateRank, DropsQueuedWorkAfterTimeout) {
  compute();
  const std::vector<float> expected = logits();
  backend->compute_async(*plan);
  ASSERT_TRUE(backend->members()[1]->enqueue(gate.task()));
  // A graph that runs on rank 1 only.
  Graph own;
  Tensor* x = own.input("x", DType::kF32, {8, 1, 1, 1});
  own.output(scale(own, x, {2.0f, 0.0f}));
  const auto own_plan = backend->members()[1]->create_plan(own);
  backend->members()[1]->compute_async(*own_plan);
  EXPECT_THAT([&] { backend->synchronize(); }, ThrowsMessage<CommError>(message));
  EXPECT_THAT(time_outs.messages(), testing::ElementsAre(message));
  EXPECT_EQ(open_timeouts(), 0);
  compute();
  EXPECT_EQ(logits(), expected);
}

TEST_F(MetaBackendLateRank, IsNotReportedWithoutACollective) {
  compute();
  ASSERT_TRUE(backend->members()[1]->enqueue(gate.task()));
  std::thread opens([&] {
    std::this_thread::sleep_for(3s);
    gate.open = true;
  });
  backend->synchronize();
  opens.join();
  EXPECT_THAT(time_outs.messages(), testing::IsEmpty());
}

TEST(MetaBackendMembers, NeedNoEvents) {
  const auto meta = MetaDevice::create({&Registry::instance().device("CPU0"), &Registry::instance().device("NULL0")},
                                       test::callback_for({}));
  const auto backend = meta->init();
  ASSERT_EQ(meta->new_event(), nullptr);
  test::Gate gate;
  ASSERT_TRUE(backend->members()[0]->enqueue(gate.task()));
  bool done = false;
  const auto finish = [](void* object, const void*, bool) {
    *static_cast<bool*>(object) = true;
    fail<DeviceError>("broken");
  };
  ASSERT_TRUE(backend->members()[0]->enqueue({finish, &done, nullptr}));
  std::jthread opener([&] {
    std::this_thread::sleep_for(20ms);
    gate.open = true;
  });
  finish_queued(*backend);
  EXPECT_TRUE(done);
  EXPECT_THROW(backend->synchronize(), DeviceError) << "finish_queued() does not clear the failure";
}

TEST(MetaBackendFaults, ErrorNamesFailingNode) {
  BackendReg& family = *Registry::instance().find_family("NULL");
  Device& faulty = family.create_device("fail_node=y");
  const auto meta = MetaDevice::create({&Registry::instance().device("NULL0"), &faulty}, test::callback_for({}));
  test::Loaded loaded("input %x f32 [4]\n%y = scale(%x) {scale=2}\noutput %y\n", *meta);
  const auto backend = meta->init();
  const auto plan = backend->create_plan(loaded.graph);
  for (int i = 0; i < 2; ++i) {
    backend->compute_async(*plan);
    EXPECT_THAT([&] { backend->synchronize(); }, ThrowsMessage<DeviceError>(HasSubstr("node y failed")));
  }
}

TEST(MetaBackendFaults, PlanningRefusesMemberWithoutHostFunctions) {
  const auto meta = MetaDevice::create(
      {&Registry::instance().device("NULL0"), &Registry::instance().find_family("NULL")->create_device("")},
      test::callback_for(test::llama_layouts({3, 1})));
  test::Loaded loaded(test::llama_graph(1), *meta);
  const auto backend = meta->init();
  EXPECT_THAT([&] { backend->create_plan(loaded.graph); },
              ThrowsMessage<InvalidArgument>(HasSubstr("cannot run host functions in stream order")));
  EXPECT_EQ(loaded.graph.find("logits")->buffer, nullptr);
}

}  // namespace
}  // namespace shoal::meta
