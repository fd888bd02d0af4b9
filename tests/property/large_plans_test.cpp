// Creating, running and freeing a plan of 16,000 nodes should take about 16 times the processor time of a plan of 1,000
// nodes. The tests allow a factor of 64, because perhaps only the smaller plan fits in the CPU caches. With quadratic
// time, the factor would be 256.
#include <fmt/format.h>
#include <gtest/gtest.h>

#include <ctime>
#include <limits>

#include "graph/ops/ops.h"
#include "sched/scheduler.h"
#include "tests/meta/mesh.h"

namespace shoal {
namespace {

using meta::Layout;
using meta::Partition;

constexpr int kFew = 1000, kTimes = 16;
constexpr double kBound = 4 * kTimes;

/// Returns the processor time of this thread during `work`. This thread does all planning and queuing.
double seconds_of(const std::function<void()>& work) {
  const auto now = [] {
    timespec time{};
    clock_gettime(CLOCK_THREAD_CPUTIME_ID, &time);
    return static_cast<double>(time.tv_sec) + 1e-9 * static_cast<double>(time.tv_nsec);
  };
  const double begin = now();
  work();
  return now() - begin;
}

/// Compares the times of `work` for kFew nodes and for kTimes times as many nodes. The argument of `work` is the number
/// of nodes. Other programs disturb single measurements, so only the smallest ratio of up to five attempts must be
/// within the bound.
void expect_in_proportion(const std::function<void(int)>& work) {
  double ratio = std::numeric_limits<double>::infinity();
  for (int attempt = 0; attempt < 5 && ratio > kBound; ++attempt) {
    const double few = seconds_of([&] { work(kFew); });
    ratio = std::min(ratio, seconds_of([&] { work(kTimes * kFew); }) / few);
  }
  EXPECT_LE(ratio, kBound) << "for " << kTimes << " times the nodes";
}

void run(Backend& backend, Graph& graph) {
  const auto plan = backend.create_plan(graph);
  backend.compute_async(*plan);
  backend.synchronize();
}

/// A meta device and a weight `w` that is split along axis 0. So products with this weight are partial sums.
struct DividedWeight {
  test::CpuMesh mesh{2, {{"w", Layout::split(0, Partition::even(2, 4))}}};
  std::unique_ptr<Backend> backend = mesh.device->init();
  TensorContext leaves;
  Tensor* weight = leaves.add("w", DType::kF32, {4, 4, 1, 1});
  std::unique_ptr<Buffer> memory = allocate_tensors(leaves.tensors(), mesh.device->buffer_type(), Usage::kWeights);
};

TEST(LargePlans, ReductionsTakeLinearTime) {
  DividedWeight divided;
  expect_in_proportion([&](int count) {
    Graph graph("reduces");
    Tensor* x = graph.input("x", DType::kF32, {4, 1, 1, 1});
    for (int i = 0; i < count; ++i) x = unary(graph, mul_mat(graph, divided.weight, x), UnaryKind::kTanh);
    graph.output(x);
    run(*divided.backend, graph);
  });
}

TEST(LargePlans, LongConcatenationTakesLinearTime) {
  DividedWeight divided;
  expect_in_proportion([&](int count) {
    Graph graph("concatenation");
    Tensor* x = mul_mat(graph, divided.weight, graph.input("x", DType::kF32, {4, 1, 1, 1}));
    std::vector<Tensor*> parts;
    for (int i = 0; i < count; ++i) parts.push_back(unary(graph, x, UnaryKind::kTanh));
    graph.output(concat(graph, parts, 1));
    run(*divided.backend, graph);
  });
}

TEST(LargePlans, ManyRangesTakeLinearTime) {
  const test::CpuMesh mesh(1);
  const auto backend = mesh.other().init("threads=1");
  expect_in_proportion([&](int count) {
    Graph graph("ranges");
    Tensor* x = graph.input("x", DType::kF32, {4, 1, 1, 1});
    for (int i = 0; i < count; ++i) x = unary(graph, x, UnaryKind::kTanh);
    graph.output(x);
    std::vector<std::unique_ptr<GraphPlan>> plans;
    for (int i = 0; i < count; ++i) plans.push_back(backend->create_plan(GraphRange{&graph, i, i + 1}));
    for (const auto& plan : plans) backend->compute_async(*plan);
    backend->synchronize();
  });
}

/// The nodes run alternately on a meta device and on a CPU device.
TEST(LargePlans, ManySplitsTakeLinearTime) {
  const test::CpuMesh mesh(2);
  const auto first = mesh.device->init();
  const auto second = mesh.other().init("threads=1");
  expect_in_proportion([&](int count) {
    Graph graph("schedule");
    sched::Scheduler scheduler({first.get(), second.get()});
    Tensor* x = graph.input("x", DType::kF32, {4, 1, 1, 1});
    for (int i = 0; i < count; ++i) {
      x = unary(graph, x, UnaryKind::kTanh);
      scheduler.set_backend(*x, i % 2 == 0 ? first.get() : second.get());
    }
    graph.output(x);
    scheduler.allocate(graph);
    EXPECT_EQ(scheduler.splits(), count);
    scheduler.compute_async(graph);
    scheduler.synchronize();
  });
}

/// The graph has many inputs. One scheduler split reads many values of another backend.
TEST(LargePlans, ManyTransfersTakeLinearTime) {
  const test::CpuMesh mesh(2);
  const auto first = mesh.device->init();
  const auto second = mesh.other().init("threads=1");
  expect_in_proportion([&](int count) {
    Graph graph("transfers");
    sched::Scheduler scheduler({first.get(), second.get()});
    std::vector<Tensor*> parts;
    for (int i = 0; i < count; ++i) {
      parts.push_back(unary(graph, graph.input(fmt::format("x{}", i), DType::kF32, {4, 1, 1, 1}), UnaryKind::kTanh));
      scheduler.set_backend(*parts.back(), first.get());
    }
    Tensor* all = graph.output(concat(graph, parts, 1));
    scheduler.set_backend(*all, second.get());
    scheduler.allocate(graph);
    EXPECT_EQ(scheduler.splits(), 2);
    scheduler.compute_async(graph);
    scheduler.synchronize();
  });
}

}  // namespace
}  // namespace shoal
