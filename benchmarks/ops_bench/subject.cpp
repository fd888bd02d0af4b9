#include "benchmarks/ops_bench/subject.h"

#include <benchmark/benchmark.h>
#include <fmt/format.h>

#include <algorithm>
#include <array>
#include <chrono>
#include <cmath>
#include <utility>

#include "base/error.h"
#include "devices/allocate.h"

namespace shoal::bench {
namespace {

/// A pseudorandom number in [-1, 1], determined by i.
float random_value(uint64_t i) {
  i = (i + 1) * 0x9e3779b97f4a7c15;
  i = (i ^ (i >> 29)) * 0xbf58476d1ce4e5b9;
  return static_cast<float>(static_cast<int64_t>(i ^ (i >> 32)) >> 39) * 0x1p-24f;
}

void fill(const Leaf& leaf) {
  const Tensor& tensor = *leaf.tensor;
  const size_t row_bytes = bytes_for(tensor.dtype, tensor.shape[0]);
  for (int64_t row = 0; row < tensor.rows();) {
    const int64_t from = (row + leaf.shift) % Pool::kRows;
    const int64_t count = std::min(Pool::kRows - from, tensor.rows() - row);
    tensor_set(*leaf.tensor, leaf.pool->bytes.data() + static_cast<size_t>(from) * row_bytes,
               static_cast<size_t>(row) * row_bytes, static_cast<size_t>(count) * row_bytes);
    row += count;
  }
}

/// The elements of a tensor as f32.
std::vector<float> values_of(const Tensor& tensor) {
  std::vector<std::byte> bytes(tensor.bytes());
  tensor_get(tensor, bytes.data(), 0, bytes.size());
  std::vector<float> values(static_cast<size_t>(tensor.elements()));
  traits(tensor.dtype).to_f32(bytes.data(), values.data(), tensor.elements());
  return values;
}

void count(benchmark::State& state, const Target& target, const Cost& cost, double seconds) {
  const double bytes = cost.bytes / seconds, ops = cost.ops / seconds;
  state.counters["GB/s"] = bytes / 1e9;
  if (target.bandwidth > 0) state.counters["%bw"] = 100 * bytes / target.bandwidth;
  if (ops == 0) return;
  state.counters["GFLOP/s"] = ops / 1e9;
  const std::array peaks{target.f32_peak, target.int16_peak, target.int8_peak};
  const double peak = peaks[static_cast<size_t>(cost.arithmetic)];
  if (peak > 0) state.counters["%peak"] = 100 * ops / peak;
}

}  // namespace

/// The current benchmark. The object exists until another benchmark starts, because Google Benchmark calls the same
/// benchmark several times.
struct Current {
  Current(Target& target, std::string benchmark) : name(std::move(benchmark)), subject(target) {}
  std::string name;
  Subject subject;
  Cost cost;
};

namespace {

Current& prepare(Target& target, const std::string& name, const std::function<Cost(Subject&)>& build) {
  if (target.current == nullptr || target.current->name != name) {
    target.current.reset();
    const auto next = std::make_shared<Current>(target, name);
    next->cost = build(next->subject);
    next->subject.compile();
    next->subject.run();
    const std::string problem = next->subject.verify(next->cost);
    require<DeviceError>(problem.empty(), "{}", problem);
    target.current = next;
  }
  return *target.current;
}

}  // namespace

const Pool& Subject::pool(DType dtype, int64_t length) {
  const auto [at, is_new] = pools_.try_emplace({dtype, length});
  Pool& pool = at->second;
  if (!is_new) return pool;
  const int64_t count = Pool::kRows * length;
  pool.values.resize(static_cast<size_t>(count));
  for (size_t i = 0; i < pool.values.size(); ++i) pool.values[i] = random_value(i);
  pool.bytes.resize(bytes_for(dtype, count));
  if (traits(dtype).from_f32 != nullptr) {
    traits(dtype).from_f32(pool.values.data(), pool.bytes.data(), count);
  } else {
    // All bytes are valid codes. The highest two bits of each byte are 0, so every scale is finite and an f16 scale is
    // smaller than 2.
    for (size_t i = 0; i < pool.bytes.size(); ++i) {
      pool.bytes[i] = static_cast<std::byte>(static_cast<int>(random_value(i) * 0x1p23f) & 0x3f);
    }
  }
  traits(dtype).to_f32(pool.bytes.data(), pool.values.data(), count);
  return pool;
}

Tensor* Subject::add(DType dtype, Shape shape, Role role, BufferType* type) {
  Tensor* tensor = context_.add(fmt::format("leaf_{}", context_.tensors().size()), dtype, shape, role);
  by_type_[type != nullptr ? type : &target_.backend->device().buffer_type()].push_back(tensor);
  return tensor;
}

const Leaf& Subject::leaf(DType dtype, Shape shape, Role role, BufferType* type) {
  Leaf& leaf = leaves_.emplace_back();
  leaf.tensor = add(dtype, shape, role, type);
  leaf.pool = &pool(dtype, shape[0]);
  leaf.shift = static_cast<int64_t>(leaves_.size());
  return leaf;
}

Tensor* Subject::ints(const std::vector<int32_t>& values, Shape shape) {
  Tensor* tensor = add(DType::kI32, shape, Role::kWeight, nullptr);
  ints_.emplace_back(tensor, values);
  return tensor;
}

void Subject::compile() {
  for (const Tensor* node : graph_.nodes()) {
    require<InvalidArgument>(target_.backend->device().supports_op(*node), "{} cannot run {}",
                             target_.backend->device().name(), describe(*node));
  }
  if (last_->op != Op::kSetRows) graph_.output(last_);
  for (const auto& [type, tensors] : by_type_) memory_.push_back(allocate_tensors(tensors, *type, Usage::kWeights));
  for (const auto& [tensor, values] : ints_) tensor_set(*tensor, values.data(), 0, values.size() * sizeof(int32_t));
  for (const Leaf& leaf : leaves_) fill(leaf);
  plan_ = target_.backend->create_plan(graph_);
}

void Subject::run() {
  target_.backend->compute_async(*plan_);
  target_.backend->synchronize();
}

std::string Subject::verify(const Cost& cost) const {
  check(!cost.samples.empty(), "{} has no samples to verify", describe(*last_));
  const std::vector<float> values = values_of(*last_);
  double errors = 0, squares = 0;
  for (const Sample& sample : cost.samples) {
    const double difference = values.at(static_cast<size_t>(sample.index)) - sample.expected;
    errors += difference * difference;
    squares += sample.expected * sample.expected;
  }
  if (errors <= cost.tolerance * squares) return {};
  return fmt::format("{} is wrong: error {:.3g}, allowed {:.3g}", describe(*last_), errors / squares, cost.tolerance);
}

void add_benchmark(Target& target, const std::string& name, std::function<Cost(Subject&)> build) {
  const auto time = [&target, name, build = std::move(build)](benchmark::State& state) {
    try {
      Current& current = prepare(target, name, build);
      const auto start = std::chrono::steady_clock::now();
      while (state.KeepRunningBatch(current.subject.nodes())) current.subject.run();
      const std::chrono::duration<double> time = std::chrono::steady_clock::now() - start;
      count(state, target, current.cost, time.count() / static_cast<double>(state.iterations()));
    } catch (const Error& error) {
      state.SkipWithError(error.what());
    }
  };
  benchmark::RegisterBenchmark(name.c_str(), time)->UseRealTime()->Unit(benchmark::kMicrosecond);
}

int64_t leaves_for(const Target& target, double bytes) {
  return std::max<int64_t>(1, static_cast<int64_t>(std::ceil(static_cast<double>(target.working_set) / bytes)));
}

}  // namespace shoal::bench
