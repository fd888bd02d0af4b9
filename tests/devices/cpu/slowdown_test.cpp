#include "devices/cpu/slowdown.h"

#include <gmock/gmock.h>

#include <algorithm>
#include <limits>
#include <vector>

#include "base/error.h"
#include "devices/allocate.h"
#include "graph/ops/ops.h"
#include "tests/devices/cpu_configuration.h"

namespace shoal::cpu {
namespace {

using Clock = std::chrono::steady_clock;
using std::chrono::duration;
using testing::HasSubstr;
using testing::ThrowsMessage;

double seconds(Clock::time_point begin, Clock::time_point end) {
  return duration<double>(end - begin).count();
}

/// Number of tries. Only the best try must meet the limits, because other programs may use the cores.
constexpr int kTries = 300;

TEST(Slowdown, WaitIsProportionalToWork) {
  for (const double took : {20e-6, 200e-6, 5e-3}) {
    double best = std::numeric_limits<double>::max();
    for (int i = 0; i < kTries && best > 1.02; ++i) {
      const auto begin = Clock::now();
      const auto end = begin + std::chrono::duration_cast<Clock::duration>(duration<double>(took));
      while (Clock::now() < end) {
      }
      EXPECT_FALSE(wait_in_proportion(begin, end, 2.5, {}));
      const double ratio = seconds(begin, Clock::now()) / (2.5 * took);
      EXPECT_GE(ratio, 0.9999) << took;
      best = std::min(best, ratio);
    }
    EXPECT_LE(best, 1.05) << "after work of " << took << " s";
  }
}

TEST(Slowdown, FactorOneDoesNotWait) {
  int asked = 0;
  const auto end = Clock::now();
  EXPECT_FALSE(wait_in_proportion(end - std::chrono::seconds(1000), end, 1, [&] { return ++asked > 0; }));
  EXPECT_EQ(asked, 0);
}

TEST(Slowdown, StopCallbackEndsTheWait) {
  int asked = 0;
  const auto begin = Clock::now();
  EXPECT_TRUE(wait_in_proportion(begin, begin + std::chrono::hours(1), 1000, [&] { return ++asked == 3; }));
  EXPECT_EQ(asked, 3);
}

/// Four products. A device computes them in about a millisecond. All tensors fit into the cache.
class Products {
 public:
  Products() : backend_(Registry::instance().device("CPU0").init("threads=1")) {
    Tensor* x = graph_.input("x", DType::kF32, {256, 64, 1, 1});
    Tensor* w = graph_.input("w", DType::kF32, {256, 256, 1, 1});
    for (int i = 0; i < 4; ++i) x = mul_mat(graph_, w, x);
    graph_.output(x);
    plan_ = backend_->create_plan(graph_);
  }
  Backend& backend() { return *backend_; }
  GraphPlan& plan() { return *plan_; }

  /// Times of one run. Host tasks before and after the run record `begin` and `end`.
  struct Times {
    Clock::time_point begin, end;
    std::vector<Clock::time_point> asked;  ///< times of the calls of the abort callback
  };
  Times run() {
    Times times;
    backend_->set_abort_callback([&] {
      times.asked.push_back(Clock::now());
      return false;
    });
    const auto note = [](void* time, const void*, bool) { *static_cast<Clock::time_point*>(time) = Clock::now(); };
    backend_->enqueue({note, &times.begin, nullptr});
    backend_->compute_async(*plan_);
    backend_->enqueue({note, &times.end, nullptr});
    backend_->synchronize();
    backend_->set_abort_callback({});
    return times;
  }

 private:
  Graph graph_;
  std::unique_ptr<Backend> backend_;
  std::unique_ptr<GraphPlan> plan_;
};

/// Number of calls of the abort callback in a run without slowdown.
size_t questions_of_work() {
  const test::CpuConfiguration configuration("devices=1,slowdown=1");
  return Products().run().asked.size();
}

TEST(Slowdown, FactorMultipliesTheTimeOfWork) {
  const size_t of_work = questions_of_work();
  const test::CpuConfiguration configuration("devices=1,slowdown=3");
  Products products;
  // On a busy machine, the wait that slows the device down can be too long in most runs. So the test uses the lower
  // quartile of the ratios.
  double quartile = 0;
  for (int round = 0; round < 10 && std::abs(quartile - 3) > 0.06; ++round) {
    std::vector<double> ratios;
    for (int i = 0; i < 40; ++i) {
      const Products::Times times = products.run();
      ASSERT_GT(times.asked.size(), of_work) << "the abort callback is not called during the wait";
      const auto waits = times.asked[of_work];  // the first call of the callback after the work
      ratios.push_back(seconds(times.begin, times.end) / seconds(times.begin, waits));
    }
    std::nth_element(ratios.begin(), ratios.begin() + 10, ratios.end());
    quartile = ratios[10];
  }
  EXPECT_NEAR(quartile, 3, 0.15);
}

TEST(Slowdown, HostTasksAreNotSlowed) {
  const test::CpuConfiguration configuration("devices=1,slowdown=1000");
  Products products;
  double best = std::numeric_limits<double>::max();
  for (int i = 0; i < kTries && best > 0.5; ++i) {
    // If the slowdown applied to host tasks, this millisecond of work would take a second.
    const auto begin = Clock::now();
    const auto work = [](void*, const void*, bool) {
      const auto end = Clock::now() + std::chrono::milliseconds(1);
      while (Clock::now() < end) {
      }
    };
    products.backend().enqueue({work, nullptr, nullptr});
    products.backend().synchronize();
    best = std::min(best, seconds(begin, Clock::now()));
  }
  EXPECT_LT(best, 0.5);
}

TEST(Slowdown, AbortCallbackEndsTheWait) {
  const size_t of_work = questions_of_work();
  const test::CpuConfiguration configuration("devices=1,slowdown=1000");
  Products products;
  size_t asked = 0;
  products.backend().set_abort_callback([&] { return ++asked > of_work; });
  products.backend().compute_async(products.plan());
  EXPECT_THAT([&] { products.backend().synchronize(); },
              ThrowsMessage<Aborted>(HasSubstr("[CPU0] stopped by the abort callback")));
  EXPECT_EQ(asked, of_work + 1);
}

}  // namespace
}  // namespace shoal::cpu
