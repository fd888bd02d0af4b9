#include <gmock/gmock.h>

#include <algorithm>

#include "base/error.h"
#include "devices/cpu/cpu_backend.h"
#include "devices/cpu/isa.h"
#include "devices/functions.h"
#include "graph/ops/ops.h"
#include "tests/devices/conformance/case.h"
#include "tests/support/gate.h"

namespace shoal::cpu {
namespace {

using namespace std::chrono_literals;
using testing::HasSubstr;
using testing::ThrowsMessage;

BackendReg& family() {
  return *Registry::instance().find_family("CPU");
}

/// A graph that computes `y = soft_max(a x)`. The product is large enough for a team. Its workspace depends on the
/// number of threads.
struct Work {
  Work() {
    a = weights.add("a", DType::kF32, {256, 192, 1, 1});
    memory = allocate_tensors(weights.tensors(), Registry::instance().device("CPU0").buffer_type(), Usage::kWeights);
    x = graph.input("x", DType::kF32, {256, 64, 1, 1});
    y = graph.output(soft_max(graph, mul_mat(graph, a, x), nullptr, nullptr, {}));
    test::set_floats(*a, test::ramp(a->elements(), 1e-4f));
  }
  std::vector<float> run(Backend& backend, GraphPlan& plan) {
    test::set_floats(*x, test::ramp(x->elements(), 1e-4f));
    EXPECT_EQ(backend.compute(plan), Status::kSuccess);
    return test::get_floats(*y);
  }
  TensorContext weights;
  std::unique_ptr<Buffer> memory;
  Graph graph;
  Tensor *a, *x, *y;
};

TEST(CpuFunctions, UnknownFunctionIsNull) {
  EXPECT_EQ(family().function("nonsense"), nullptr);
  EXPECT_EQ(find_function(family(), functions::kSplitBufferType), nullptr);
}

TEST(CpuFunctions, FeaturesNameTheInstructionSet) {
  const auto features = find_function(family(), functions::kFeatures)();
  const auto value = [&](std::string_view name) {
    const auto found = std::find_if(features.begin(), features.end(), [&](const auto& f) { return f.name == name; });
    return found == features.end() ? "missing" : found->value;
  };
  EXPECT_EQ(value("isa"), level_in_use());
  EXPECT_EQ(&kernels_of(value("isa")), &kernels());
  EXPECT_THAT(value("isa_usable"), HasSubstr("baseline"));
  EXPECT_THAT(value("isa_built"), HasSubstr(value("isa_usable")));
  EXPECT_NE(value("openmp"), "missing");
  EXPECT_THAT(value("hwloc"), testing::MatchesRegex("[0-9]+\\.[0-9]+\\.[0-9]+"));
}

TEST(CpuFunctions, ExtraBufferTypesAreMappedAndPacked) {
  Device& device = Registry::instance().device("CPU0");
  const auto types = find_function(family(), functions::kExtraBufferTypes)(device);
  ASSERT_EQ(types.size(), 2u);
  alignas(64) std::byte bytes[64];
  EXPECT_EQ(&device.buffer_from_host_ptr(bytes, 64)->type(), types[0]);
  EXPECT_EQ(&device.weights_type(), types[1]);
  EXPECT_EQ(types[1]->name(), "CPU0_Packed");
  for (const BufferType* type : types) EXPECT_TRUE(device.supports_buffer_type(*type));
}

TEST(CpuFunctions, ThreadsCanBeChangedBetweenRuns) {
  const auto set_threads = find_function(family(), functions::kSetThreads);
  const auto backend = Registry::instance().init("CPU0:threads=2");
  const auto& cpu = dynamic_cast<CpuBackend&>(*backend);
  Work work;
  const auto plan = backend->create_plan(work.graph);
  const auto expected = work.run(*backend, *plan);
  // The plan was created for two threads. The number of threads is changed to larger and smaller numbers, and back to
  // two.
  for (const int threads : {5, 1, 3, 2}) {
    set_threads(*backend, threads);
    EXPECT_EQ(cpu.threads(), threads);
    EXPECT_EQ(work.run(*backend, *plan), expected) << threads;
    Work other;
    const auto fresh = backend->create_plan(other.graph);
    EXPECT_EQ(other.run(*backend, *fresh), expected) << threads;
  }
  EXPECT_THAT([&] { set_threads(*backend, 0); },
              ThrowsMessage<InvalidArgument>(HasSubstr("threads must be from 1 to 1024, got 0")));
  EXPECT_EQ(cpu.threads(), 2);
}

TEST(CpuFunctions, CachedPlansAreDroppedWhenThreadsChange) {
  const auto backend = Registry::instance().init("CPU0:threads=1");
  Work work;
  EXPECT_EQ(backend->compute(work.graph), Status::kSuccess);
  EXPECT_EQ(backend->plans().size(), 1u);
  find_function(family(), functions::kSetThreads)(*backend, 2);
  EXPECT_EQ(backend->plans().size(), 0u);
  EXPECT_EQ(backend->compute(work.graph), Status::kSuccess);
}

TEST(CpuFunctions, EventsAndPlansOutliveReplacedThreads) {
  const auto set_threads = find_function(family(), functions::kSetThreads);
  const auto backend = Registry::instance().init("CPU0:threads=2");
  const auto event = Registry::instance().device("CPU0").new_event();
  Work work;
  auto plan = backend->create_plan(work.graph);
  for (int i = 0; i < 50; ++i) work.run(*backend, *plan);
  event->record(*backend);
  set_threads(*backend, 1);
  event->synchronize();
  event->wait(*backend);
  plan.reset();  // waits for the last run of the plan; the replaced threads execute this run
  backend->synchronize();
}

TEST(CpuFunctions, ChangeOfThreadsThrowsEarlierFailure) {
  const auto backend = Registry::instance().init("CPU0:threads=1");
  backend->enqueue({[](void*, const void*, bool) { fail<DeviceError>("broken"); }, nullptr, nullptr});
  EXPECT_THAT([&] { find_function(family(), functions::kSetThreads)(*backend, 2); },
              ThrowsMessage<DeviceError>("broken"));
  EXPECT_EQ(dynamic_cast<CpuBackend&>(*backend).threads(), 1);
}

TEST(CpuFunctions, AbortCallbackSurvivesAChangeOfThreads) {
  const auto backend = Registry::instance().init("CPU0:threads=1");
  bool stop = true;
  backend->set_abort_callback([&] { return stop; });
  find_function(family(), functions::kSetThreads)(*backend, 2);  // must not remove the callback
  Work work;
  const auto plan = backend->create_plan(work.graph);
  EXPECT_EQ(backend->compute(*plan), Status::kAborted);
  stop = false;
  EXPECT_EQ(backend->compute(*plan), Status::kSuccess);
  stop = true;
  backend->set_abort_callback({});
  EXPECT_EQ(backend->compute(*plan), Status::kSuccess);
}

TEST(CpuFunctions, CancelledWorkFailsWithTheReason) {
  const auto backend = Registry::instance().init("CPU0:threads=2");
  Work work;
  const auto plan = backend->create_plan(work.graph);
  const std::vector<float> expected = work.run(*backend, *plan);
  test::set_floats(*work.y, std::vector<float>(expected.size(), -1.0f));
  test::Gate gate;
  backend->enqueue(gate.task());
  backend->compute_async(*plan);
  find_function(family(), functions::kCancel)(*backend, "rank 3 did not come");
  gate.open = true;
  EXPECT_THAT([&] { backend->synchronize(); }, ThrowsMessage<CommError>("rank 3 did not come"));
  EXPECT_THAT(test::get_floats(*work.y), testing::Each(-1.0f)) << "the cancelled work has run";
  EXPECT_EQ(work.run(*backend, *plan), expected) << "later work must run";
}

TEST(CpuFunctions, CancellationDoesNotAffectFinishedWork) {
  const auto backend = Registry::instance().init("CPU0:threads=2");
  Work work;
  const auto plan = backend->create_plan(work.graph);
  const std::vector<float> expected = work.run(*backend, *plan);
  find_function(family(), functions::kCancel)(*backend, "too late");
  EXPECT_EQ(work.run(*backend, *plan), expected);
}

TEST(CpuFunctions, WaitingForQueuedWorkEndsAtTheTimeLimit) {
  using functions::Activity;
  const auto wait_for_queued = find_function(family(), functions::kWaitForQueued);
  const auto at = [&](Backend& backend, std::chrono::nanoseconds time) {
    return wait_for_queued(backend, time).activity;
  };
  const auto backend = Registry::instance().init("CPU0:threads=1");
  EXPECT_EQ(at(*backend, 0ns), Activity::kNone);
  test::Gate gate;
  backend->hold();  // wait_for_queued must also wait for work that hold() keeps back
  backend->enqueue(gate.task());
  EXPECT_EQ(at(*backend, 0ns), Activity::kWorks);
  const auto begin = std::chrono::steady_clock::now();
  EXPECT_EQ(at(*backend, 30ms), Activity::kWorks);
  EXPECT_GE(std::chrono::steady_clock::now() - begin, 30ms);
  const auto behind = Registry::instance().init("CPU0:threads=1");
  const auto event = backend->device().new_event();
  event->record(*backend);
  event->wait(*behind);
  for (int i = 0; i < 5000 && at(*behind, 1ms) != Activity::kWaits; ++i) {
  }
  EXPECT_EQ(at(*behind, 0ns), Activity::kWaits);
  gate.open = true;
  const uint64_t before = wait_for_queued(*backend, 20s).ended;
  EXPECT_EQ(at(*backend, 20s), Activity::kNone);
  EXPECT_EQ(at(*behind, 20s), Activity::kNone);
  backend->enqueue({[](void*, const void*, bool) {}, nullptr, nullptr});
  EXPECT_EQ(wait_for_queued(*backend, 20s).ended, before + 1);
  backend->release();
  backend->synchronize();
  behind->synchronize();
}

TEST(CpuFunctions, RejectBackendsOfOtherFamilies) {
  const auto other = Registry::instance().init("NULL0");
  EXPECT_THROW(find_function(family(), functions::kSetThreads)(*other, 2), InvalidArgument);
  EXPECT_THROW(find_function(family(), functions::kExtraBufferTypes)(other->device()), InvalidArgument);
  EXPECT_THROW(find_function(family(), functions::kCancel)(*other, "reason"), InvalidArgument);
  EXPECT_THROW(find_function(family(), functions::kWaitForQueued)(*other, {}), InvalidArgument);
}

}  // namespace
}  // namespace shoal::cpu
