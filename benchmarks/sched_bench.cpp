// Times the scheduling work of the host thread. The graph is a decoder of 32 layers: 965 nodes with tiny tensors. CPU
// devices divide the layers, or one meta device runs all layers. First the results are verified, then calls are timed
// on the calling thread. After each call, the thread waits for the devices; the time does not include this wait.
//
//   schedule   only the creation of the schedule, which assigns nodes to backends
//   first      the first call for a graph; it creates the schedule, the local graphs and their plans
//   cached     compute_async of a graph that is in the cache
//   queueing   compute_async of the backend, without a scheduler (only for one device or one meta device)
//
//   sched_bench --benchmark_repetitions=5 --benchmark_report_aggregates_only
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
#include "meta/meta.h"
#include "models/arch/architecture.h"
#include "models/place/split_policy.h"
#include "models/session/inputs.h"
#include "sched/scheduler.h"

namespace shoal::models {
namespace {

constexpr int kLayers = 32;

Hparams hparams() {
  Hparams h;
  h.architecture = "llama";
  h.layers = kLayers;
  h.context = 64;
  h.embd = 64;
  h.ff = 96;
  h.heads = h.kv_heads = 4;
  h.head_dim_k = h.head_dim_v = 16;
  h.vocab = 64;
  h.norm_eps = 1e-5f;
  h.rope.dims = 16;
  h.attention.scale = 0.25f;
  return h;
}

int layer_of(const std::string& name) {
  const auto digit = name.find_first_of("0123456789");
  const bool numbered = name.starts_with("blk.") || name.starts_with("cache");
  return numbered && digit != std::string::npos ? std::stoi(name.substr(digit))
         : name.starts_with("token_embd")       ? 0
                                                : kLayers - 1;
}

/// The decoder on some devices, with a backend for each device.
class Loaded {
 public:
  /// `devices` is the number of CPU devices. If `use_meta` is true, they act as one meta device. Otherwise, they divide
  /// the layers.
  Loaded(int devices, bool use_meta) : hparams_(hparams()) {
    cpu::configure(fmt::format("devices={},threads=1", devices));
    std::vector<Device*> cpus;
    for (int i = 0; i < devices; ++i) cpus.push_back(&Registry::instance().device(fmt::format("CPU{}", i)));
    declare();
    if (use_meta) {
      meta_ = meta::MetaDevice::create(cpus, policy(devices));
      cpus = {meta_.get()};
    }
    place(cpus);
    for (Device* device : cpus) backends_.push_back(device->init());
  }

  std::vector<Backend*> backends() const {
    std::vector<Backend*> all;
    for (const auto& backend : backends_) all.push_back(backend.get());
    return all;
  }
  DecoderGraph build() const { return find_architecture("llama", {}).build(hparams_, weights_, cache_, {1, 1}); }

  void set_inputs(DecoderGraph& graph) const {
    const int32_t token = 3, zero = 0;
    tensor_set(*graph.tokens, &token, 0, 4);
    tensor_set(*graph.out_ids, &zero, 0, 4);
    WholeCache(cache_).write_inputs(graph, hparams_, {&zero, 1});
  }
  static std::vector<float> logits(const DecoderGraph& graph) {
    std::vector<float> values(static_cast<size_t>(graph.logits->elements()));
    tensor_get(*graph.logits, values.data(), 0, values.size() * 4);
    return values;
  }

 private:
  void declare() {
    specs_ = find_architecture("llama", {}).tensors(hparams_);
    for (const TensorSpec& spec : specs_) {
      if (spec.name != "rope_freqs.weight") weights_.add(spec.name, DType::kF32, spec.shape);
    }
    declare_cache(cache_, hparams_, {32});
  }
  meta::SplitStateCallback policy(int devices) const {
    std::vector<ModelTensor> tensors;
    for (const TensorSpec& spec : specs_) {
      if (spec.name != "rope_freqs.weight") tensors.push_back({&spec, DType::kF32});
    }
    return SplitPolicy(hparams_, tensors, std::vector<double>(static_cast<size_t>(devices), 1.0 / devices));
  }
  void place(const std::vector<Device*>& devices) {
    for (const TensorContext* context : {&weights_, &cache_.context}) {
      std::vector<std::vector<Tensor*>> parts(devices.size());
      for (Tensor* tensor : context->tensors()) {
        parts[static_cast<size_t>(layer_of(tensor->name)) * devices.size() / kLayers].push_back(tensor);
      }
      for (size_t d = 0; d < devices.size(); ++d) {
        memory_.push_back(allocate_tensors(parts[d], devices[d]->buffer_type(), Usage::kWeights));
        if (context == &cache_.context && memory_.back() != nullptr) memory_.back()->clear(0);
      }
    }
    for (Tensor* tensor : weights_.tensors()) {
      std::vector<float> values(static_cast<size_t>(tensor->elements()));
      for (size_t i = 0; i < values.size(); ++i)
        values[i] = std::sin(static_cast<float>(i % 1009) + static_cast<float>(tensor->name.size())) / 4;
      tensor_set(*tensor, values.data(), 0, values.size() * 4);
    }
  }

  Hparams hparams_;
  std::vector<TensorSpec> specs_;
  TensorContext weights_;
  KvCache cache_;
  std::unique_ptr<meta::MetaDevice> meta_;
  std::vector<std::unique_ptr<Buffer>> memory_;
  std::vector<std::unique_ptr<Backend>> backends_;
};

/// The logits of one CPU device without a meta device.
std::vector<float> reference() {
  Loaded decoder(1, false);
  DecoderGraph graph = decoder.build();
  Backend& backend = *decoder.backends().front();
  backend.plans().plan(*graph.graph);
  decoder.set_inputs(graph);
  backend.compute(*graph.graph);
  return Loaded::logits(graph);
}

std::string difference(const std::vector<float>& expected, const std::vector<float>& actual) {
  for (size_t i = 0; i < expected.size(); ++i) {
    if (!(std::abs(expected[i] - actual[i]) <= 1e-3f * (1.0f + std::abs(expected[i])))) {
      return fmt::format("logit {} is {}, expected {}", i, actual[i], expected[i]);
    }
  }
  return {};
}

/// Times work of the calling thread and reports the median. Other load on the machine changes a median less than a
/// mean.
class Clock {
 public:
  explicit Clock(benchmark::State& state) : state_(state) {}
  ~Clock() {
    if (times_.empty()) return;
    std::nth_element(times_.begin(), times_.begin() + static_cast<ptrdiff_t>(times_.size() / 2), times_.end());
    state_.counters["median_us"] = 1e6 * times_[times_.size() / 2];
  }
  template <class Work>
  void time(Work&& work) {
    const auto begin = std::chrono::steady_clock::now();
    work();
    times_.push_back(std::chrono::duration<double>(std::chrono::steady_clock::now() - begin).count());
    state_.SetIterationTime(times_.back());
  }

 private:
  benchmark::State& state_;
  std::vector<double> times_;
};

struct Scheduled {
  Scheduled(benchmark::State& state, int devices, bool use_meta)
      : expected(reference()),
        decoder(devices, use_meta),
        scheduler(decoder.backends(), {.copies = 4}),
        graph(decoder.build()) {
    scheduler.allocate(*graph.graph);
    decoder.set_inputs(graph);
    scheduler.compute(*graph.graph);
    if (const std::string what = difference(expected, Loaded::logits(graph)); !what.empty())
      state.SkipWithError(what.c_str());
    state.counters["nodes"] = static_cast<double>(graph.graph->nodes().size());
    state.counters["splits"] = scheduler.splits();
  }
  std::vector<float> expected;
  Loaded decoder;
  sched::Scheduler scheduler;
  DecoderGraph graph;
};

void schedule(benchmark::State& state, bool use_meta) {
  Scheduled one(state, static_cast<int>(state.range(0)), use_meta);
  Clock clock(state);
  for (auto _ : state) clock.time([&] { benchmark::DoNotOptimize(one.scheduler.split(*one.graph.graph)); });
}

void first(benchmark::State& state, bool use_meta) {
  Scheduled one(state, static_cast<int>(state.range(0)), use_meta);
  Clock clock(state);
  for (auto _ : state) {
    DecoderGraph graph = one.decoder.build();
    clock.time([&] { one.scheduler.allocate(*graph.graph); });
    one.scheduler.synchronize();
  }
}

void cached(benchmark::State& state, bool use_meta) {
  Scheduled one(state, static_cast<int>(state.range(0)), use_meta);
  Clock clock(state);
  for (auto _ : state) {
    clock.time([&] { one.scheduler.compute_async(*one.graph.graph); });
    one.scheduler.synchronize();
  }
}

void queueing(benchmark::State& state, bool use_meta) {
  Loaded decoder(static_cast<int>(state.range(0)), use_meta);
  Backend& backend = *decoder.backends().front();
  DecoderGraph graph = decoder.build();
  const auto plan = backend.create_plan(*graph.graph);
  decoder.set_inputs(graph);
  Clock clock(state);
  for (auto _ : state) {
    clock.time([&] { backend.compute_async(*plan); });
    backend.synchronize();
  }
}

void on_cpus(benchmark::internal::Benchmark* benchmark) {
  benchmark->ArgName("devices")
      ->Unit(benchmark::kMicrosecond)
      ->UseManualTime()
      ->Iterations(300)
      ->Arg(1)
      ->Arg(2)
      ->Arg(4);
}
void on_meta(benchmark::internal::Benchmark* benchmark) {
  benchmark->ArgName("ranks")->Unit(benchmark::kMicrosecond)->UseManualTime()->Iterations(300)->Arg(1)->Arg(2)->Arg(4);
}

BENCHMARK_CAPTURE(schedule, cpu, false)->Apply(on_cpus);
BENCHMARK_CAPTURE(first, cpu, false)->Apply(on_cpus);
BENCHMARK_CAPTURE(cached, cpu, false)->Apply(on_cpus);
BENCHMARK_CAPTURE(queueing, cpu, false)
    ->ArgName("devices")
    ->Unit(benchmark::kMicrosecond)
    ->UseManualTime()
    ->Iterations(300)
    ->Arg(1);
BENCHMARK_CAPTURE(schedule, meta, true)->Apply(on_meta);
BENCHMARK_CAPTURE(first, meta, true)->Apply(on_meta);
BENCHMARK_CAPTURE(cached, meta, true)->Apply(on_meta);
BENCHMARK_CAPTURE(queueing, meta, true)->Apply(on_meta);

}  // namespace
}  // namespace shoal::models
