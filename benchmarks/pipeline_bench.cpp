// Times a pipeline over two CPU devices. Each device has one thread and half of the layers. `pipelined` queues all
// micro-batches at once. The second device then works on a micro-batch while the first device works on the next
// micro-batch. `serial` waits for each micro-batch. Ideally, n micro-batches take (n + 1) / (2n) of the serial time,
// which is 0.625 for n = 4.
//
// First the results are verified, then the two modes are timed alternately. `ratio` is the median of pipelined time /
// serial time. The ratio is only meaningful if two cores are free.
//
//   pipeline_bench --benchmark_repetitions=5
#include <benchmark/benchmark.h>
#include <fmt/core.h>

#include <algorithm>
#include <chrono>
#include <cmath>
#include <memory>
#include <string>
#include <vector>

#include "devices/allocate.h"
#include "devices/cpu/cpu_device.h"
#include "graph/ops/ops.h"
#include "sched/scheduler.h"

namespace shoal::sched {
namespace {

constexpr int kLayers = 16;
constexpr int64_t kWidth = 512;
constexpr int64_t kTokens = 32;
constexpr int kTurns = 15;

/// A model of kLayers layers x -> x + w * silu(rms_norm(x)).
class Pipeline {
 public:
  explicit Pipeline(int batches) : seen_(static_cast<size_t>(batches)) {
    cpu::configure("devices=2,threads=1");
    std::vector<Device*> devices{&Registry::instance().device("CPU0"), &Registry::instance().device("CPU1")};
    std::vector<std::vector<Tensor*>> parts(devices.size());
    x_ = graph_.input("x", DType::kF32, {kWidth, kTokens, 1, 1});
    y_ = x_;
    for (int layer = 0; layer < kLayers; ++layer) {
      Tensor* weight = weights_.add(fmt::format("w{}", layer), DType::kF32, {kWidth, kWidth, 1, 1});
      parts[static_cast<size_t>(layer) * devices.size() / kLayers].push_back(weight);
      Tensor* normed = rms_norm(graph_, y_, {1e-5f});
      y_ = add(graph_, y_, mul_mat(graph_, weight, unary(graph_, normed, UnaryKind::kSilu)));
    }
    graph_.output(y_);
    for (size_t d = 0; d < devices.size(); ++d) {
      memory_.push_back(allocate_tensors(parts[d], devices[d]->buffer_type(), Usage::kWeights));
      backends_.push_back(devices[d]->init());
    }
    for (Tensor* weight : weights_.tensors()) fill(*weight, 0.05f);
    scheduler_ = std::make_unique<Scheduler>(std::vector<Backend*>{backends_[0].get(), backends_[1].get()},
                                             SchedulerOptions{.copies = batches});
    scheduler_->allocate(graph_);
    for (auto& values : seen_) values.resize(static_cast<size_t>(y_->elements()));
  }

  /// Runs all micro-batches. Returns the seconds of the whole run.
  double run(bool pipelined) {
    const auto begin = std::chrono::steady_clock::now();
    for (size_t batch = 0; batch < seen_.size(); ++batch) {
      fill(*x_, 1.0f + static_cast<float>(batch));
      scheduler_->compute_async(graph_);
      scheduler_->get_async(*y_, seen_[batch].data(), 0, y_->bytes());
      if (!pipelined) scheduler_->synchronize();
    }
    scheduler_->synchronize();
    return std::chrono::duration<double>(std::chrono::steady_clock::now() - begin).count();
  }

  std::string verify() {
    if (scheduler_->splits() != 2) return fmt::format("{} splits", scheduler_->splits());
    run(false);
    const auto expected = seen_;
    if (expected[0] == expected.back()) return "all micro-batches have the same result; expected different results";
    for (const auto& values : expected) {
      if (!std::all_of(values.begin(), values.end(), [](float value) { return std::isfinite(value); }))
        return "not finite";
    }
    for (int turn = 0; turn < 5; ++turn) {
      for (auto& values : seen_) std::fill(values.begin(), values.end(), 0.0f);
      run(true);
      if (seen_ != expected) return "pipelined and serial results differ";
    }
    return {};
  }

 private:
  static void fill(Tensor& tensor, float scale) {
    std::vector<float> values(static_cast<size_t>(tensor.elements()));
    for (size_t i = 0; i < values.size(); ++i)
      values[i] = scale * (static_cast<float>(i * 7919 % 2003) / 1001.0f - 1.0f);
    tensor_set(tensor, values.data(), 0, values.size() * 4);
  }

  TensorContext weights_;
  Graph graph_{"pipeline"};
  Tensor *x_, *y_;
  std::vector<std::unique_ptr<Buffer>> memory_;
  std::vector<std::unique_ptr<Backend>> backends_;
  std::unique_ptr<Scheduler> scheduler_;
  std::vector<std::vector<float>> seen_;
};

void pipeline(benchmark::State& state) {
  Pipeline pipeline(static_cast<int>(state.range(0)));
  if (const std::string problem = pipeline.verify(); !problem.empty()) return state.SkipWithError(problem.c_str());
  std::vector<double> ratios;
  double serial = 0.0;
  for (auto _ : state) {
    const double once = pipeline.run(false), overlapped = pipeline.run(true);
    state.SetIterationTime(overlapped);
    ratios.push_back(overlapped / once);
    serial += once;
  }
  std::nth_element(ratios.begin(), ratios.begin() + static_cast<ptrdiff_t>(ratios.size() / 2), ratios.end());
  state.counters["ratio"] = ratios[ratios.size() / 2];
  state.counters["serial_ms"] = 1e3 * serial / static_cast<double>(ratios.size());
}

BENCHMARK(pipeline)->ArgName("batches")->Arg(2)->Arg(4)->Arg(8)->Iterations(kTurns)->UseManualTime()->Unit(
    benchmark::kMillisecond);

}  // namespace
}  // namespace shoal::sched
