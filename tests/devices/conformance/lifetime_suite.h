// Tests of objects that are destroyed while other objects use them: backends before their plans, and buffers before
// plans and queued work.
#pragma once

#include "tests/devices/conformance/case.h"
#include "tests/support/gate.h"

namespace shoal::test {

class LifetimeSuite : public DeviceFixture {
 protected:
  static constexpr int64_t kLength = 300;

  /// A graph that computes y = x + w. The weight w has its own buffer.
  struct Sum {
    explicit Sum(Device& device) : type(device.buffer_type()) {
      w = weights.add("the_weight", DType::kF32, {kLength, 1, 1, 1});
      x = graph.input("x", DType::kF32, {kLength, 1, 1, 1});
      y = graph.output(add(graph, x, w));
      place();
    }
    void place() {
      memory = allocate_tensors(weights.tensors(), type, Usage::kWeights);
      ASSERT_NE(memory, nullptr);
      set_floats(*w, ramp(kLength));
    }
    void lose(bool by_reset) { by_reset ? memory->reset() : memory.reset(); }
    BufferType& type;
    TensorContext weights;
    Graph graph{"sum"};
    Tensor *w, *x, *y;
    std::unique_ptr<Buffer> memory;
  };

  template <class F>
  static void expect_refusal(F&& call, std::initializer_list<const char*> parts) {
    try {
      call();
      ADD_FAILURE() << "nothing was thrown";
    } catch (const InvalidArgument& error) {
      for (const char* part : parts) EXPECT_NE(std::string(error.what()).find(part), std::string::npos) << error.what();
    }
  }
};

TEST_P(LifetimeSuite, PlanReportsFreedWeights) {
  const auto backend = new_backend();
  for (const bool by_reset : {false, true}) {
    Sum sum(device());
    auto plan = backend->create_plan(sum.graph);
    set_floats(*sum.x, ramp(kLength, 2.0f));
    EXPECT_EQ(backend->compute(*plan), Status::kSuccess);
    sum.lose(by_reset);
    expect_refusal([&] { backend->compute_async(*plan); }, {"the_weight", "freed or reset", "plan"});
    backend->synchronize();
    sum.place();
    expect_refusal([&] { backend->compute_async(*plan); }, {"the_weight"});
    plan.reset();
    plan = backend->create_plan(sum.graph);
    EXPECT_EQ(backend->compute(*plan), Status::kSuccess);
  }
}

TEST_P(LifetimeSuite, PlanReportsDestroyedPlanOfPrecedingRange) {
  const auto backend = new_backend();
  Graph graph;
  Tensor* x = graph.input("x", DType::kF32, {kLength, 1, 1, 1});
  Tensor* h = scale(graph, x, {2.0f, 0.0f}, "h");
  graph.output(scale(graph, h, {2.0f, 0.0f}, "y"));
  auto first = backend->create_plan({&graph, 0, 1});
  const auto second = backend->create_plan({&graph, 1, 2});
  set_floats(*x, ramp(kLength));
  backend->compute_async(*first);
  backend->compute_async(*second);
  backend->synchronize();
  first.reset();
  expect_refusal([&] { backend->compute_async(*second); }, {"h", "freed or reset", "new plan"});
}

TEST_P(LifetimeSuite, CachedPlanIsReplacedAfterWeightsMove) {
  const auto backend = new_backend();
  Sum sum(device());
  backend->compute_async(sum.graph);
  set_floats(*sum.x, ramp(kLength, 2.0f));
  backend->compute_async(sum.graph);
  backend->synchronize();
  EXPECT_EQ(get_floats(*sum.y), ramp(kLength, 3.0f));
  sum.lose(false);
  EXPECT_THROW(backend->compute_async(sum.graph), InvalidArgument);
  sum.place();
  backend->compute_async(sum.graph);
  set_floats(*sum.x, ramp(kLength, 4.0f));
  backend->compute_async(sum.graph);
  backend->synchronize();
  EXPECT_EQ(get_floats(*sum.y), ramp(kLength, 5.0f));
}

TEST_P(LifetimeSuite, QueuedWorkReportsFreedBuffer) {
  const auto backend = new_backend();
  const std::vector<float> values = ramp(kLength, 7.0f);
  std::vector<float> seen(kLength);
  for (const bool by_reset : {false, true}) {
    for (const char* what : {"set", "get", "run"}) {
      Sum sum(device());
      const auto plan = backend->create_plan(sum.graph);
      Gate gate;
      ASSERT_TRUE(backend->enqueue(gate.task()));
      if (what == std::string("set")) backend->set_async(*sum.w, values.data(), 0, kLength * sizeof(float));
      if (what == std::string("get")) backend->get_async(*sum.w, seen.data(), 0, kLength * sizeof(float));
      if (what == std::string("run")) backend->compute_async(*plan);
      sum.lose(by_reset);
      gate.open = true;
      expect_refusal([&] { backend->synchronize(); }, {"freed or reset"});
      backend->synchronize();  // does not throw, because the failure was already reported
    }
  }
}

TEST_P(LifetimeSuite, PlanMayOutliveItsBackend) {
  auto backend = new_backend();
  const auto other = new_backend();
  Sum sum(device());
  sum.graph.output(scale(sum.graph, sum.y, {2.0f, 0.0f}, "z"));
  auto plan = backend->create_plan(sum.graph);
  set_floats(*sum.x, ramp(kLength, 2.0f));
  // In the second run, a device may combine several nodes, for example in a CUDA graph. Later runs may reuse the
  // combined nodes.
  for (int i = 0; i < 3; ++i) backend->compute_async(*plan);
  backend.reset();
  EXPECT_FALSE(plan->has_backend());
  expect_refusal([&] { other->compute_async(*plan); }, {"was destroyed"});
  plan.reset();
  plan = other->create_plan(sum.graph);
  EXPECT_TRUE(plan->has_backend());
  EXPECT_EQ(other->compute(*plan), Status::kSuccess);
}

TEST_P(LifetimeSuite, UnplacedTensorErrorSaysHowToPlaceIt) {
  Graph graph;
  TensorContext weights;
  Tensor* w = weights.add("w", DType::kF32, {4, 1, 1, 1});
  Tensor* x = graph.input("x", DType::kF32, {4, 1, 1, 1});
  Tensor* y = graph.output(scale(graph, x, {2.0f, 0.0f}, "y"));
  const auto backend = new_backend();
  std::vector<float> values(4);
  for (const bool queued : {false, true}) {
    const auto set = [&](Tensor& tensor) {
      queued ? backend->set_async(tensor, values.data(), 0, 16) : tensor_set(tensor, values.data(), 0, 16);
    };
    expect_refusal([&] { set(*x); }, {"x", "an input", "plan"});
    expect_refusal([&] { set(*y); }, {"y", "a node", "plan"});
    expect_refusal([&] { set(*w); }, {"w", "allocate_tensors"});
  }
  const auto plan = backend->create_plan(graph);
  set_floats(*x, values);
}

}  // namespace shoal::test
