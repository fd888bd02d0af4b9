// Tests of backends. Queued accesses and graphs must run in order, a plan must run several times, and synchronize()
// must report failures.
#pragma once

#include <atomic>

#include "tests/devices/conformance/case.h"
#include "tests/support/gate.h"

namespace shoal::test {

class BackendSuite : public DeviceFixture {
 protected:
  /// A CPU device, which exists on every machine.
  static Device& other_device() { return Registry::instance().device("CPU0"); }

  /// A graph that computes x * 2 + 1 twice. The second computation reads a view of the first result.
  struct Doubler {
    explicit Doubler(int64_t length) {
      x = graph.input("x", DType::kF32, {length, 2, 1, 1});
      Tensor* once = scale(graph, x, {2.0f, 1.0f}, "once");
      Tensor* flat = reshape(graph, once, {2 * length, 1, 1, 1});
      y = graph.output(scale(graph, flat, {2.0f, 1.0f}, "twice"));
    }
    static std::vector<float> expected(std::vector<float> values) {
      for (float& value : values) value = value * 4 + 3;
      return values;
    }
    Graph graph{"doubler"};
    Tensor* x;
    Tensor* y;
  };
};

TEST_P(BackendSuite, ReportsItsDeviceAndName) {
  const auto backend = new_backend();
  EXPECT_EQ(&backend->device(), &device());
  EXPECT_FALSE(backend->name().empty());
}

TEST_P(BackendSuite, ComputesAGraph) {
  const auto backend = new_backend();
  for (int64_t length : {int64_t{1}, int64_t{37}, int64_t{40000}}) {
    Doubler doubler(length);
    const auto plan = backend->create_plan(doubler.graph);
    EXPECT_GE(plan->allocated_bytes(), doubler.x->bytes());
    EXPECT_EQ(&plan->backend(), backend.get());
    const std::vector<float> values = ramp(2 * length);
    set_floats(*doubler.x, values);
    EXPECT_EQ(backend->compute(*plan), Status::kSuccess);
    EXPECT_EQ(get_floats(*doubler.y), Doubler::expected(values));
  }
}

TEST_P(BackendSuite, QueuedWorkRunsInOrder) {
  const auto backend = new_backend();
  Doubler doubler(500);
  const auto plan = backend->create_plan(doubler.graph);
  constexpr int kRuns = 20;
  std::vector<std::vector<float>> in, out(kRuns, std::vector<float>(1000));
  for (int run = 0; run < kRuns; ++run) in.push_back(ramp(1000, static_cast<float>(run + 1)));
  for (int run = 0; run < kRuns; ++run) {
    backend->set_async(*doubler.x, in[run].data(), 0, 4000);
    backend->compute_async(*plan);
    backend->get_async(*doubler.y, out[run].data(), 0, 4000);
  }
  backend->synchronize();
  for (int run = 0; run < kRuns; ++run) EXPECT_EQ(out[run], Doubler::expected(in[run])) << run;
}

TEST_P(BackendSuite, RectanglesCanBeCopiedAsynchronously) {
  const auto backend = new_backend();
  Tensor& x = placed("x", {8, 4, 1, 1});
  x.buffer->memset(x, 0, 0, x.bytes());
  const std::vector<float> host = ramp(8, 2.0f);
  const Rows rows{8, 8, 4, 32};
  std::vector<float> back(8);
  Gate gate;
  backend->enqueue(gate.task());  // if the device runs host tasks, the calls below must not block
  backend->set_2d_async(x, host.data(), 8, rows);
  backend->get_2d_async(x, back.data(), 8, rows);
  gate.open = true;
  backend->synchronize();
  EXPECT_EQ(back, host);
  EXPECT_THROW(backend->set_2d_async(x, host.data(), 8, {8, 8, 5, 32}), InvalidArgument);
  EXPECT_THROW(backend->get_2d_async(x, back.data(), 8, {8, 8, 5, 32}), InvalidArgument);
}

TEST_P(BackendSuite, RunsGraphAsTwoRanges) {
  const auto backend = new_backend();
  Doubler doubler(64);
  const int count = static_cast<int>(doubler.graph.nodes().size());
  const auto first = backend->create_plan({&doubler.graph, 0, 1});
  const auto second = backend->create_plan({&doubler.graph, 1, count});
  const std::vector<float> values = ramp(128);
  set_floats(*doubler.x, values);
  backend->compute_async(*first);
  backend->compute_async(*second);
  backend->synchronize();
  EXPECT_EQ(get_floats(*doubler.y), Doubler::expected(values));
}

TEST_P(BackendSuite, GraphCanBePlannedRepeatedly) {
  const auto backend = new_backend();
  Doubler doubler(64);
  const std::vector<float> values = ramp(128);
  for (int round = 0; round < 3; ++round) {
    const auto plan = backend->create_plan(doubler.graph);
    set_floats(*doubler.x, values);
    backend->compute_async(*plan);
    backend->synchronize();
    EXPECT_EQ(get_floats(*doubler.y), Doubler::expected(values));
  }
}

TEST_P(BackendSuite, PlanFreezesItsGraph) {
  const auto backend = new_backend();
  Doubler doubler(4);
  const auto plan = backend->create_plan(doubler.graph);
  EXPECT_THROW(scale(doubler.graph, doubler.y, {}), InvalidArgument);
}

TEST_P(BackendSuite, RefusesPlansOfOtherBackends) {
  const auto backend = new_backend();
  const auto other = new_backend();
  Doubler doubler(4);
  const auto plan = backend->create_plan(doubler.graph);
  EXPECT_THROW(other->compute_async(*plan), InvalidArgument);
}

TEST_P(BackendSuite, ErrorNamesWeightWithoutMemory) {
  const auto backend = new_backend();
  TensorContext context;
  Tensor* forgotten = context.add("forgotten", DType::kF32, {8, 1, 1, 1});
  Graph graph;
  graph.output(scale(graph, forgotten, {2.0f, 0.0f}));
  try {
    backend->create_plan(graph);
    FAIL() << "the weight has no memory";
  } catch (const InvalidArgument& error) {
    EXPECT_NE(std::string(error.what()).find("forgotten"), std::string::npos) << error.what();
  }
}

TEST_P(BackendSuite, WritesCacheRowsAndReadsThemThroughViews) {
  const auto backend = new_backend();
  Tensor* cache = weights_.add("cache", DType::kF32, {4, 8, 1, 1}, Role::kCache);
  buffers_.push_back(allocate_tensors({&cache, 1}, device().buffer_type(), Usage::kAny));
  cache->buffer->memset(*cache, 0, 0, cache->bytes());
  Graph graph;
  Tensor* rows = graph.input("rows", DType::kF32, {4, 2, 1, 1});
  Tensor* ids = graph.input("ids", DType::kI32, {2, 1, 1, 1});
  Tensor* written = set_rows(graph, cache, rows, ids);
  Tensor* tail = slice(graph, written, {1, 6, 2});
  Tensor* seen = graph.output(scale(graph, tail, {10.0f, 0.0f}));
  const auto plan = backend->create_plan(graph);
  set_floats(*rows, ramp(8));
  const int32_t where[] = {7, 1};
  tensor_set(*ids, where, 0, sizeof(where));
  EXPECT_EQ(backend->compute(*plan), Status::kSuccess);
  EXPECT_EQ(get_floats(*seen), (std::vector<float>{0, 0, 0, 0, 0, 10, 20, 30}));
  std::vector<float> expected(32, 0.0f);
  for (size_t i = 0; i < 4; ++i) {
    expected[28 + i] = static_cast<float>(i);
    expected[4 + i] = static_cast<float>(4 + i);
  }
  EXPECT_EQ(get_floats(*cache), expected);
}

TEST_P(BackendSuite, SkipsNodesWithEmptyResults) {
  const auto backend = new_backend();
  Doubler doubler(0);
  const auto plan = backend->create_plan(doubler.graph);
  EXPECT_EQ(backend->compute(*plan), Status::kSuccess);
}

TEST_P(BackendSuite, CopiesBetweenTwoStreams) {
  const auto from = new_backend();
  const auto to = new_backend();
  Tensor& x = placed("x", {1000, 1, 1, 1});
  Tensor& y = placed("y", {1000, 1, 1, 1});
  constexpr int kRounds = 50;
  std::vector<std::vector<float>> in, out(kRounds, std::vector<float>(1000));
  for (int round = 0; round < kRounds; ++round) in.push_back(ramp(1000, static_cast<float>(round)));
  for (int round = 0; round < kRounds; ++round) {
    from->set_async(x, in[round].data(), 0, 4000);
    from->copy_async(x, *to, y);
    to->get_async(y, out[round].data(), 0, 4000);
  }
  to->synchronize();
  for (int round = 0; round < kRounds; ++round) EXPECT_EQ(out[round], in[round]) << round;
  from->synchronize();
}

TEST_P(BackendSuite, CopiesWithinOneStream) {
  const auto backend = new_backend();
  Tensor& x = placed("x", {64, 1, 1, 1});
  Tensor& y = placed("y", {64, 1, 1, 1});
  const std::vector<float> values = ramp(64);
  backend->set_async(x, values.data(), 0, 256);
  backend->copy_async(x, *backend, y);
  backend->synchronize();
  EXPECT_EQ(get_floats(y), values);
}

/// Copies between streams of two families. A gate blocks the source stream or the destination stream, and the host must
/// continue.
TEST_P(BackendSuite, CopiesToAnotherFamilyWithoutBlockingTheHost) {
  const auto from = new_backend();
  const auto to = other_device().init("threads=1");
  Tensor& x = placed("x", {100, 7, 1, 1});
  Tensor* y = weights_.add("y", DType::kF32, {100, 7, 1, 1});
  const auto memory = allocate_tensors({&y, 1}, other_device().buffer_type(), Usage::kWeights);
  const std::vector<float> values = ramp(700), zeros(700), ones(700, 1.0f);
  for (bool hold_source : {true, false}) {
    set_floats(x, zeros);
    set_floats(*y, zeros);
    std::vector<float> before(700), after(700), source(700);
    Gate gate;
    ASSERT_TRUE((hold_source ? *from : *to).enqueue(gate.task()));
    from->set_async(x, values.data(), 0, 2800);
    to->set_async(*y, ones.data(), 0, 2800);
    to->get_async(*y, before.data(), 0, 2800);
    from->copy_async(x, *to, *y);
    from->set_async(x, zeros.data(), 0, 2800);
    from->get_async(x, source.data(), 0, 2800);
    to->get_async(*y, after.data(), 0, 2800);
    gate.open = true;
    from->synchronize();
    to->synchronize();
    EXPECT_EQ(before, ones);
    EXPECT_EQ(after, values);
    EXPECT_EQ(source, zeros);
  }
}

TEST_P(BackendSuite, CopiesFromAnotherFamilyWithoutBlockingTheHost) {
  const auto from = other_device().init("threads=1");
  const auto to = new_backend();
  Tensor* x = weights_.add("x", DType::kF32, {100, 7, 1, 1});
  const auto memory = allocate_tensors({&x, 1}, other_device().buffer_type(), Usage::kWeights);
  Tensor& y = placed("y", {100, 7, 1, 1});
  constexpr int kRounds = 20;
  std::vector<std::vector<float>> in, out(kRounds, std::vector<float>(700));
  for (int round = 0; round < kRounds; ++round) in.push_back(ramp(700, static_cast<float>(round)));
  for (bool hold_source : {true, false}) {
    Gate gate;
    ASSERT_TRUE((hold_source ? *from : *to).enqueue(gate.task()));
    for (int round = 0; round < kRounds; ++round) {
      from->set_async(*x, in[round].data(), 0, 2800);
      from->copy_async(*x, *to, y);
      to->get_async(y, out[round].data(), 0, 2800);
    }
    gate.open = true;
    to->synchronize();
    for (int round = 0; round < kRounds; ++round) EXPECT_EQ(out[round], in[round]) << round;
    from->synchronize();
  }
}

TEST_P(BackendSuite, FailedStreamDoesNotBlockReceiverOfItsCopies) {
  const auto mine = new_backend();
  const auto other = other_device().init("threads=1");
  Tensor& x = placed("x", {64, 1, 1, 1});
  Tensor* y = weights_.add("y", DType::kF32, {64, 1, 1, 1});
  const auto memory = allocate_tensors({&y, 1}, other_device().buffer_type(), Usage::kWeights);
  set_floats(x, ramp(64));
  set_floats(*y, ramp(64));
  const HostTask failing{[](void*, const void*, bool failed) {
                           if (!failed) fail<DeviceError>("broken");
                         },
                         nullptr, nullptr};
  ASSERT_TRUE(mine->enqueue(failing));
  mine->copy_async(x, *other, *y);
  other->synchronize();
  EXPECT_THROW(mine->synchronize(), DeviceError);
  ASSERT_TRUE(other->enqueue(failing));
  other->copy_async(*y, *mine, x);
  mine->synchronize();
  EXPECT_THROW(other->synchronize(), DeviceError);
  set_floats(x, ramp(64, 2.0f));
  mine->copy_async(x, *other, *y);
  other->synchronize();
  EXPECT_EQ(get_floats(*y), ramp(64, 2.0f));
  mine->synchronize();
}

TEST_P(BackendSuite, InvalidQueuedAccessFailsWithoutHanging) {
  const auto backend = new_backend();
  Tensor& x = placed("x", {4, 1, 1, 1});
  std::vector<float> host(64);
  EXPECT_THROW(
      {
        backend->set_async(x, host.data(), 8, 64);
        backend->synchronize();
      },
      InvalidArgument);
  backend->synchronize();
  backend->set_async(x, host.data(), 0, 16);
  backend->synchronize();
}

// Tests of host tasks.

TEST_P(BackendSuite, HostTasksRunInStreamOrder) {
  const auto backend = new_backend();
  Doubler doubler(100);
  const auto plan = backend->create_plan(doubler.graph);
  const std::vector<float> values = ramp(200);
  backend->set_async(*doubler.x, values.data(), 0, 800);
  backend->compute_async(*plan);
  struct Seen {
    const Tensor* tensor;
    std::vector<float> values;
  } seen{doubler.y, {}};
  ASSERT_TRUE(backend->enqueue({[](void* object, const void*, bool failed) {
                                  auto& s = *static_cast<Seen*>(object);
                                  if (!failed) s.values = get_floats(*s.tensor);
                                },
                                &seen, nullptr}));
  backend->synchronize();
  EXPECT_EQ(seen.values, Doubler::expected(values));
}

TEST_P(BackendSuite, ReportsFirstFailureAndSkipsLaterWork) {
  const auto backend = new_backend();
  Tensor& x = placed("x", {4, 1, 1, 1});
  set_floats(x, {1, 2, 3, 4});
  const std::vector<float> other{9, 9, 9, 9};
  static std::atomic<int> told;
  told = 0;
  const auto failing = [](void*, const void* argument, bool failed) {
    if (failed) return void(++told);
    fail<DeviceError>("failure {}", static_cast<const char*>(argument));
  };
  ASSERT_TRUE(backend->enqueue({failing, nullptr, "one"}));
  backend->enqueue({failing, nullptr, "two"});
  backend->set_async(x, other.data(), 0, 16);
  try {
    backend->synchronize();
    FAIL() << "the failure was lost";
  } catch (const DeviceError& error) {
    EXPECT_STREQ(error.what(), "failure one");
  }
  EXPECT_EQ(told, 1);
  EXPECT_EQ(get_floats(x), (std::vector<float>{1, 2, 3, 4})) << "work after a failure ran";
  backend->synchronize();  // does not throw, because the failure was already reported
  backend->set_async(x, other.data(), 0, 16);
  backend->synchronize();
  EXPECT_EQ(get_floats(x), other);
}

TEST_P(BackendSuite, AbortCallbackDoesNotClearFailures) {
  const auto backend = new_backend();
  ASSERT_TRUE(backend->enqueue({[](void*, const void*, bool) { fail<DeviceError>("broken"); }, nullptr, nullptr}));
  EXPECT_TRUE(backend->set_abort_callback([] { return false; }));
  EXPECT_THROW(backend->synchronize(), DeviceError);
  EXPECT_TRUE(backend->set_abort_callback({}));
}

TEST_P(BackendSuite, ComputeReturnsFailuresAsStatus) {
  const auto backend = new_backend();
  Doubler doubler(4);
  const auto plan = backend->create_plan(doubler.graph);
  const auto device_fails = [](void*, const void*, bool) { fail<DeviceError>("broken"); };
  const auto comm_fails = [](void*, const void*, bool) { fail<CommError>("broken"); };
  ASSERT_TRUE(backend->enqueue({device_fails, nullptr, nullptr}));
  EXPECT_EQ(backend->compute(*plan), Status::kFailed);
  backend->enqueue({comm_fails, nullptr, nullptr});
  EXPECT_EQ(backend->compute(*plan), Status::kAborted);
  EXPECT_EQ(backend->compute(*plan), Status::kSuccess);
}

TEST_P(BackendSuite, RunsThousandsOfSmallTasks) {
  const auto backend = new_backend();
  std::atomic<int> count{0};
  constexpr int kTasks = 20000;
  for (int i = 0; i < kTasks; ++i) {
    ASSERT_TRUE(backend->enqueue(
        {[](void* object, const void*, bool) { ++*static_cast<std::atomic<int>*>(object); }, &count, nullptr}));
    if (i % 1000 == 0) backend->synchronize();
  }
  backend->synchronize();
  EXPECT_EQ(count, kTasks);
}

TEST_P(BackendSuite, DestructorFinishesQueuedWork) {
  std::atomic<int> count{0};
  {
    const auto backend = new_backend();
    for (int i = 0; i < 100; ++i) {
      ASSERT_TRUE(backend->enqueue(
          {[](void* object, const void*, bool) { ++*static_cast<std::atomic<int>*>(object); }, &count, nullptr}));
    }
  }
  EXPECT_EQ(count, 100);
}

}  // namespace shoal::test
