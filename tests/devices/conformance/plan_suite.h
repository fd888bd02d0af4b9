// Tests of plans: segments, nodes in PlanOptions::shown, arenas, aborts, and plans that are updated for another graph.
#pragma once

#include <atomic>

#include "tests/devices/conformance/case.h"

namespace shoal::test {

class PlanSuite : public DeviceFixture {
 protected:
  static constexpr int64_t kLength = 500;

  /// A graph with two nodes per segment. Node sum<i> adds copy<i> to twice the previous sum. The second node of a
  /// segment is the last node that reads the segment's sum. This node must not overwrite the sum, because the sum is in
  /// PlanOptions::shown.
  struct Chain {
    explicit Chain(int segments) {
      Tensor* last = graph.input("x", DType::kF32, {kLength, 1, 1, 1});
      for (int i = 0; i < segments; ++i) {
        if (i > 0) options.cuts.push_back(static_cast<int>(graph.nodes().size()));
        copies.push_back(graph.copy_of(elsewhere, "copy" + std::to_string(i)));
        options.late.push_back({copies.back(), i});
        sums.push_back(add(graph, last, copies.back(), "sum" + std::to_string(i)));
        last = scale(graph, sums.back(), {2.0f, 0.0f}, "twice" + std::to_string(i));
      }
      graph.output(last);
      options.shown.assign(sums.begin(), sums.end());
    }
    static std::vector<float> copy(int segment, float round) {
      return ramp(kLength, static_cast<float>(segment + 1) * round);
    }
    static Tensor original() {
      Tensor tensor;
      tensor.name = "elsewhere";
      tensor.shape = {kLength, 1, 1, 1};
      return tensor;
    }
    const Tensor elsewhere = original();
    Graph graph{"chain"};
    PlanOptions options;
    std::vector<Tensor*> copies, sums;
  };

  /// Runs the segments of the chain one by one. Returns the values of each sum.
  static std::vector<std::vector<float>> run(Chain& chain, Backend& backend, GraphPlan& plan, float round) {
    std::vector<std::vector<float>> written, seen(chain.sums.size(), std::vector<float>(kLength));
    for (size_t i = 0; i < chain.sums.size(); ++i) written.push_back(Chain::copy(static_cast<int>(i), round));
    const std::vector<float> x = ramp(kLength, round);
    backend.set_async(*chain.graph.inputs()[0], x.data(), 0, kLength * 4);
    backend.set_async(*chain.copies[0], written[0].data(), 0, kLength * 4);
    for (size_t i = 0; i < seen.size(); ++i) {
      backend.compute_async(plan, static_cast<int>(i), static_cast<int>(i) + 1);
      if (i + 1 < seen.size()) backend.set_async(*chain.copies[i + 1], written[i + 1].data(), 0, kLength * 4);
      backend.get_async(*chain.sums[i], seen[i].data(), 0, kLength * 4);
    }
    backend.synchronize();
    return seen;
  }
  static void expect_sums(const std::vector<std::vector<float>>& seen, float round) {
    std::vector<float> last = ramp(kLength, round);
    for (size_t i = 0; i < seen.size(); ++i) {
      const std::vector<float> copy = Chain::copy(static_cast<int>(i), round);
      for (size_t k = 0; k < last.size(); ++k) last[k] += copy[k];
      EXPECT_EQ(seen[i], last) << "segment " << i;
      for (float& value : last) value *= 2;
    }
  }

  /// A graph that computes x * 2 + 1 `count` times.
  struct Steps {
    Steps(int64_t length, int count) {
      x = graph.input("x", DType::kF32, {length, 1, 1, 1});
      y = x;
      for (int i = 0; i < count; ++i) y = scale(graph, y, {2.0f, 1.0f}, "step" + std::to_string(i));
      graph.output(y);
    }
    void check(Backend& backend, GraphPlan& plan) {
      const std::vector<float> values = ramp(x->elements());
      set_floats(*x, values);
      ASSERT_EQ(backend.compute(plan), Status::kSuccess);
      std::vector<float> expected = values;
      for (size_t i = 0; i < graph.nodes().size(); ++i) {
        for (float& value : expected) value = value * 2 + 1;
      }
      EXPECT_EQ(get_floats(*y), expected);
    }
    Graph graph{"steps"};
    Tensor *x, *y;
  };
};

TEST_P(PlanSuite, SegmentsRunOneByOne) {
  const auto backend = new_backend();
  Chain chain(6);
  const auto plan = backend->create_plan(chain.graph, chain.options);
  EXPECT_EQ(plan->segments(), 6);
  EXPECT_EQ(plan->writable_from(*chain.graph.inputs()[0]), 0);
  for (int i = 0; i < 6; ++i) EXPECT_EQ(plan->writable_from(*chain.copies[static_cast<size_t>(i)]), i);
  for (float round : {1.0f, 2.0f, 3.0f}) expect_sums(run(chain, *backend, *plan, round), round);
  // The plan needs memory for x, the output, one copy and the nodes of two segments.
  const size_t copies = std::max<size_t>(1, backend->members().size());
  EXPECT_LT(plan->allocated_bytes(), copies * 8 * device().buffer_type().alignment() + copies * 7 * kLength * 4);
}

TEST_P(PlanSuite, RunsSeveralSegmentsInOneCall) {
  const auto backend = new_backend();
  Steps steps(64, 7);
  const auto plan = backend->create_plan(steps.graph, {{1, 2, 5}});
  steps.check(*backend, *plan);
  const std::vector<float> values = ramp(64, 3.0f);
  std::vector<float> expected = values, seen(64);
  for (float& value : expected) value = value * 128 + 127;
  set_floats(*steps.x, values);
  backend->compute_async(*plan, 0, 0);
  backend->compute_async(*plan, 0, 2);
  backend->compute_async(*plan, 2, 4);
  backend->compute_async(*plan, 4, 4);
  backend->get_async(*steps.y, seen.data(), 0, 256);
  backend->synchronize();
  EXPECT_EQ(seen, expected);
}

TEST_P(PlanSuite, RefusesInvalidPlanOptions) {
  const auto backend = new_backend();
  Steps steps(4, 5), other(4, 5);
  const GraphRange tail{&steps.graph, 2, 5};
  for (const std::vector<int>& cuts : {std::vector<int>{0}, {5}, {3, 2}, {2, 2}, {-1}}) {
    EXPECT_THROW(backend->create_plan(steps.graph, {cuts}), InvalidArgument) << cuts.back();
  }
  EXPECT_THROW(backend->create_plan(tail, {{2}}), InvalidArgument) << "cut at the first node";
  EXPECT_THROW(backend->create_plan(tail, {{}, {steps.graph.nodes()[1]}}), InvalidArgument) << "node before the range";
  EXPECT_THROW(backend->create_plan(steps.graph, {{}, {other.y}}), InvalidArgument) << "node of another graph";
  EXPECT_THROW(backend->create_plan(steps.graph, {{}, {steps.x}}), InvalidArgument) << "not a node";
  EXPECT_THROW(backend->create_plan(steps.graph, {{}, {nullptr}}), InvalidArgument);
  for (const LateInput& late : {LateInput{other.x, 0}, {steps.y, 0}, {nullptr, 0}, {steps.x, 2}, {steps.x, -1}}) {
    EXPECT_THROW(backend->create_plan(steps.graph, {{1}, {}, {late}}), InvalidArgument);
  }
  EXPECT_THROW(backend->create_plan(steps.graph, {{1}, {}, {{steps.x, 1}}}), InvalidArgument)
      << "read in an earlier segment";
  EXPECT_THROW(backend->create_plan(steps.graph, {{1}, {}, {{steps.x, 0}, {steps.x, 0}}}), InvalidArgument)
      << "given twice";
  const auto plan = backend->create_plan(steps.graph, {{1, 4}, {steps.y}});
  for (const auto& [first, last] : {std::pair(-1, 1), {2, 1}, {0, 4}, {4, 4}}) {
    EXPECT_THROW(backend->compute_async(*plan, first, last), InvalidArgument) << first << " " << last;
  }
  backend->synchronize();
}

TEST_P(PlanSuite, PlansShareAnArena) {
  const auto backend = new_backend();
  ComputeArena arena(*backend);
  EXPECT_EQ(arena.bytes(), 0U);
  Steps small(1000, 2), large(3000, 5);
  Chain chain(3);
  chain.options.arena = &arena;
  const auto first = backend->create_plan(small.graph, {.arena = &arena});
  EXPECT_EQ(arena.bytes(), first->allocated_bytes());
  const auto second = backend->create_plan(large.graph, {.arena = &arena});
  const auto third = backend->create_plan(chain.graph, chain.options);
  const size_t bytes = arena.bytes();
  EXPECT_GE(bytes, second->allocated_bytes());
  EXPECT_LT(bytes, first->allocated_bytes() + second->allocated_bytes());
  for (int round = 0; round < 3; ++round) {
    small.check(*backend, *first);
    large.check(*backend, *second);
    expect_sums(run(chain, *backend, *third, 2.0f), 2.0f);
  }
  EXPECT_EQ(arena.bytes(), bytes);
}

TEST_P(PlanSuite, ArenaMayGrowWhilePlansUseIt) {
  const auto backend = new_backend();
  ComputeArena arena(*backend);
  Steps small(100, 2), large(5000, 2);
  auto first = backend->create_plan(small.graph, {.arena = &arena});
  small.check(*backend, *first);
  const auto second = backend->create_plan(large.graph, {.arena = &arena});
  small.check(*backend, *first);
  large.check(*backend, *second);
  first.reset();
  large.check(*backend, *second);
}

// Tests of the abort callback.

TEST_P(PlanSuite, AbortedRunStopsAfterAtMostOneNode) {
  const auto backend = new_backend();
  Steps steps(30000, 40);
  const auto plan = backend->create_plan(steps.graph, {{10, 20}});
  const int streams = std::max(1, static_cast<int>(backend->members().size()));
  std::atomic<int> asked{0};
  constexpr int kLimit = 15;
  ASSERT_TRUE(backend->set_abort_callback([&] { return ++asked > kLimit * streams; }));
  set_floats(*steps.x, ramp(30000));
  EXPECT_EQ(backend->compute(*plan), Status::kAborted);
  EXPECT_GT(asked, kLimit * streams);
  EXPECT_LE(asked, kLimit * streams + streams) << "a stream ran on after the request to stop";
  asked = 0;
  backend->compute_async(*plan);
  try {
    backend->synchronize();
    FAIL() << "the run completed";
  } catch (const Aborted& error) {
    EXPECT_NE(std::string(error.what()).find("step"), std::string::npos) << "does not name the node: " << error.what();
  }
  asked = kLimit * streams;  // the first call of the callback requests the abort
  const std::vector<float> zeros(30000);
  set_floats(*steps.y, zeros);
  EXPECT_EQ(backend->compute(*plan), Status::kAborted);
  std::vector<float> one_step = ramp(30000);
  for (float& value : one_step) value = value * 2 + 1;
  const std::vector<float> left = get_floats(*steps.y);
  EXPECT_TRUE(left == zeros || left == one_step) << "only the node after the callback may run";
  asked = -1000000;  // the callback never requests an abort
  steps.check(*backend, *plan);
  ASSERT_TRUE(backend->set_abort_callback({}));
  asked = 0;
  steps.check(*backend, *plan);
  EXPECT_EQ(asked, 0);
}

// Tests of update_plan().

TEST_P(PlanSuite, PlanCanBeUpdatedForEqualTopology) {
  const auto backend = new_backend();
  auto graph = std::make_unique<Steps>(300, 5);
  const auto plan = backend->create_plan(graph->graph, {{2}, {graph->graph.nodes()[1]}});
  graph->check(*backend, *plan);
  for (bool gone : {false, true, false, true}) {
    auto next = std::make_unique<Steps>(300, 5);
    Tensor* before = graph->y;
    if (gone) graph.reset();
    ASSERT_TRUE(backend->update_plan(*plan, next->graph));
    if (!gone) {
      EXPECT_EQ(before->buffer, nullptr) << "the tensors of the old graph no longer have memory";
      EXPECT_NO_THROW(backend->create_plan(graph->graph)) << "the old graph may get a new plan";
    }
    next->check(*backend, *plan);
    EXPECT_EQ(plan->segments(), 2);
    EXPECT_THROW(scale(next->graph, next->y, {}), InvalidArgument) << "frozen like any graph with a plan";
    graph = std::move(next);
  }
}

TEST_P(PlanSuite, PlanCannotBeUpdatedForOtherTopologies) {
  const auto backend = new_backend();
  Steps steps(300, 5), longer(300, 6), wider(301, 5);
  Steps other(300, 5);
  std::get<ScaleParams>(other.y->params).scale = 3;
  const auto plan = backend->create_plan(steps.graph);
  for (Steps* another : {&longer, &wider, &other}) {
    EXPECT_FALSE(backend->update_plan(*plan, another->graph));
    EXPECT_EQ(another->y->buffer, nullptr);
    steps.check(*backend, *plan);
  }
}

TEST_P(PlanSuite, PlansOfRangesMustBeUpdatedInOrder) {
  const auto backend = new_backend();
  Steps steps(300, 5), next(300, 5);
  const auto first = backend->create_plan({&steps.graph, 0, 2});
  const auto second = backend->create_plan({&steps.graph, 2, 5});
  const auto check = [&](Steps& on, float factor) {
    const std::vector<float> values = ramp(300, factor);
    set_floats(*on.x, values);
    backend->compute_async(*first);
    backend->compute_async(*second);
    backend->synchronize();
    std::vector<float> expected = values;
    for (float& value : expected) value = value * 32 + 31;
    EXPECT_EQ(get_floats(*on.y), expected);
  };
  EXPECT_FALSE(backend->update_plan(*second, next.graph)) << "the values that it reads have not moved yet";
  EXPECT_EQ(next.y->buffer, nullptr);
  check(steps, 1.0f);
  ASSERT_TRUE(backend->update_plan(*first, next.graph));
  ASSERT_TRUE(backend->update_plan(*second, next.graph));
  check(next, 2.0f);
}

}  // namespace shoal::test
