// attention on a CPU device: verified, then timed. `rows` is the depth of the cache, `queries` the tokens computed at
// once, the last of which sees all rows. Time is that of one node. Nodes with a cache each take turns, so that a cache
// comes from memory as in a model. Counters: GB/s of keys and values read once, GFLOP/s of products that are seen.
//
//   attention_bench --benchmark_filter=queries:1/
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

namespace shoal {
namespace {

constexpr int64_t kHeads = 32, kKvHeads = 8;
constexpr size_t kCacheBytes = size_t{192} << 20;  ///< of all nodes: more than the processor's caches hold

/// Numbers from -1 to 1, the same in every run.
std::vector<float> numbers(int64_t count, uint32_t seed) {
  std::vector<float> values(static_cast<size_t>(count));
  for (float& value : values) {
    seed = seed * 1664525u + 1013904223u;
    value = static_cast<float>(seed >> 8) / static_cast<float>(1 << 23) - 1.0f;
  }
  return values;
}

/// Nodes of one shape, each with its own cache.
class Attention {
 public:
  Attention(DType dtype, int64_t dim, int64_t queries, int64_t rows, int threads)
      : dim_(dim), queries_(queries), rows_(rows), q_values_(numbers(dim * queries * kHeads, 2)) {
    cpu::configure(fmt::format("devices=1,threads={}", threads));
    q_ = graph_.input("q", DType::kF32, {dim, queries, kHeads, 1});
    Tensor* positions = graph_.input("positions", DType::kI32, {queries, 1, 1, 1});
    const Shape cache{dim, rows, kKvHeads, 1};
    const size_t bytes =
        static_cast<size_t>(rows * kKvHeads * dim) * traits(dtype).block_bytes / traits(dtype).block_elems;
    for (size_t i = 0; i < std::clamp<size_t>(kCacheBytes / 2 / bytes, 1, 64); ++i) {
      Tensor* k = caches_.add(fmt::format("k{}", i), dtype, cache, Role::kCache);
      Tensor* v = caches_.add(fmt::format("v{}", i), dtype, cache, Role::kCache);
      nodes_.push_back(graph_.output(attention(graph_, q_, k, v, positions, nullptr, nullptr, {scale(), 0, true})));
    }
    Device& device = Registry::instance().device("CPU0");
    memory_ = allocate_tensors(caches_.tensors(), device.buffer_type(), Usage::kCompute);
    fill_caches(dtype);
    backend_ = device.init();
    plan_ = backend_->create_plan(graph_, {});
    std::vector<int32_t> at(static_cast<size_t>(queries));
    for (size_t i = 0; i < at.size(); ++i) at[i] = static_cast<int32_t>(rows - queries + static_cast<int64_t>(i));
    tensor_set(*q_, q_values_.data(), 0, q_->bytes());
    tensor_set(*positions, at.data(), 0, positions->bytes());
  }

  /// Time of one node.
  double run() {
    const auto begin = std::chrono::steady_clock::now();
    backend_->compute(*plan_);
    const std::chrono::duration<double> time = std::chrono::steady_clock::now() - begin;
    return time.count() / static_cast<double>(nodes_.size());
  }

  /// Empty when the first and last query of some heads are right in the last node.
  std::string verify() {
    run();
    std::vector<float> result(static_cast<size_t>(dim_ * kHeads * queries_));
    tensor_get(*nodes_.back(), result.data(), 0, result.size() * sizeof(float));
    for (const int64_t query : {int64_t{0}, queries_ - 1}) {
      for (const int64_t head : {int64_t{0}, kHeads - 1}) {
        const std::vector<double> expected = expected_of(query, head);
        const float* row = result.data() + (query * kHeads + head) * dim_;
        for (size_t i = 0; i < expected.size(); ++i) {
          if (std::abs(row[i] - expected[i]) > 1e-5) {
            return fmt::format("element {} of query {}, head {}: {}, not {}", i, query, head, row[i], expected[i]);
          }
        }
      }
    }
    return {};
  }

  double cache_bytes() const { return static_cast<double>(caches_.tensors()[0]->bytes() * 2); }
  /// Products of queries with keys and of weights with values, where a query sees the row.
  double operations() const {
    const auto seen = static_cast<double>(queries_ * (rows_ - queries_) + queries_ * (queries_ + 1) / 2);
    return 4 * seen * static_cast<double>(dim_ * kHeads);
  }

 private:
  float scale() const { return 1 / std::sqrt(static_cast<float>(dim_)); }
  void fill_caches(DType dtype) {
    const std::vector<float> k = numbers(dim_ * rows_ * kKvHeads, 3), v = numbers(dim_ * rows_ * kKvHeads, 4);
    std::vector<std::byte> bytes(caches_.tensors()[0]->bytes());
    for (size_t i = 0; i < caches_.tensors().size(); ++i) {
      std::vector<float>& known = i % 2 == 0 ? k_values_ : v_values_;
      known = i % 2 == 0 ? k : v;
      traits(dtype).from_f32(known.data(), bytes.data(), static_cast<int64_t>(known.size()));
      traits(dtype).to_f32(bytes.data(), known.data(), static_cast<int64_t>(known.size()));
      tensor_set(*caches_.tensors()[i], bytes.data(), 0, bytes.size());
    }
  }
  std::vector<double> expected_of(int64_t query, int64_t head) const {
    const float* q = q_values_.data() + (head * queries_ + query) * dim_;
    const int64_t first = head / (kHeads / kKvHeads) * rows_ * dim_;
    std::vector<double> sums(static_cast<size_t>(dim_));
    double total = 0;
    for (int64_t row = 0; row <= rows_ - queries_ + query; ++row) {
      const float *k = k_values_.data() + first + row * dim_, *v = v_values_.data() + first + row * dim_;
      double score = 0;
      for (int64_t i = 0; i < dim_; ++i) score += static_cast<double>(q[i]) * k[i];
      const double weight = std::exp(score * scale());
      total += weight;
      for (size_t i = 0; i < sums.size(); ++i) sums[i] += weight * v[i];
    }
    for (double& sum : sums) sum /= total;
    return sums;
  }

  int64_t dim_, queries_, rows_;
  std::vector<float> q_values_, k_values_, v_values_;
  TensorContext caches_;
  Graph graph_{"attention"};
  Tensor* q_;
  std::vector<Tensor*> nodes_;
  std::unique_ptr<Buffer> memory_;
  std::unique_ptr<Backend> backend_;
  std::unique_ptr<GraphPlan> plan_;
};

void attention(benchmark::State& state, DType dtype) {
  const int64_t dim = state.range(0), queries = state.range(1), rows = state.range(2);
  Attention nodes(dtype, dim, queries, std::max(rows, queries), static_cast<int>(state.range(3)));
  if (const std::string problem = nodes.verify(); !problem.empty()) return state.SkipWithError(problem.c_str());
  double best = 1e9;
  for (auto _ : state) {
    const double seconds = nodes.run();
    state.SetIterationTime(seconds);
    best = std::min(best, seconds);
  }
  state.counters["GB/s"] = nodes.cache_bytes() / best * 1e-9;
  state.counters["GFLOP/s"] = nodes.operations() / best * 1e-9;
  state.counters["best_us"] = best * 1e6;
}

void sizes(benchmark::internal::Benchmark* bench) {
  bench->ArgNames({"dim", "queries", "rows", "threads"})->UseManualTime();
  for (const int64_t dim : {64, 128}) {
    for (const int64_t queries : {1, 4, 512}) {
      for (const int64_t rows : {128, 512, 4096, 16384}) {
        if (rows < queries) continue;
        for (const int64_t threads : {1, 2}) bench->Args({dim, queries, rows, threads});
      }
    }
  }
}

BENCHMARK_CAPTURE(attention, f16, DType::kF16)->Apply(sizes);
BENCHMARK_CAPTURE(attention, q8_0, DType::kQ8_0)->Apply(sizes);

}  // namespace
}  // namespace shoal
