// Collectives among CPU devices: verified, then timed. Batches of them are queued on all ranks behind a gate, which
// opens when all are queued: the time is that of the ranks, not of the thread that queues. Time is that of one
// collective; counters: GB/s of data (`alg_GB/s`, message size over time) and of the bus
// (`bus_GB/s`: what each rank must move at least over time, which does not depend on the number of ranks:
// all_reduce 2 (n - 1) / n, all_gather and reduce_scatter (n - 1) / n, broadcast 1, each times the size).
//
//   collectives_bench --benchmark_filter=all_reduce_f32/ranks:2
#include <benchmark/benchmark.h>
#include <fmt/core.h>

#include <atomic>
#include <chrono>
#include <memory>
#include <string>
#include <vector>

#include "collectives/communicator.h"
#include "devices/cpu/cpu_device.h"

namespace shoal::collectives {
namespace {

constexpr int kBatch = 256;

/// Ranks on CPU devices of one thread each, and one collective of `count` elements in all.
class Collectives {
 public:
  Collectives(Collective kind, DType dtype, int ranks, int64_t count) : kind_(kind), dtype_(dtype) {
    cpu::configure(fmt::format("devices={},threads=1", ranks));
    for (int rank = 0; rank < ranks; ++rank) {
      owned_.push_back(Registry::instance().device(fmt::format("CPU{}", rank)).init());
      backends_.push_back(owned_.back().get());
      counts_.push_back(count * (rank + 1) / ranks - count * rank / ranks);
    }
    communicator_ = make_host_communicator(backends_);
    for (int rank = 0; rank < ranks; ++rank) {
      in_.push_back(stored(std::vector(static_cast<size_t>(count), static_cast<float>(rank + 1))));
      out_.emplace_back(in_.back().size());
    }
    const bool has_counts = kind == Collective::kAllGather || kind == Collective::kReduceScatter;
    for (int rank = 0; rank < ranks; ++rank) {
      calls_.push_back({kind, dtype, in_[rank].data(), out_[rank].data(), has_counts ? 0 : count,
                        has_counts ? std::span<const int64_t>(counts_) : std::span<const int64_t>(), 0, "benchmark"});
    }
  }

  /// Runs the collective `times` times; returns the seconds it took.
  double run(int times) {
    gate_.store(false);
    for (Backend* backend : backends_) backend->enqueue({wait_for_gate, &gate_, nullptr});
    for (int i = 0; i < times; ++i) {
      for (int rank = 0; rank < size(); ++rank) communicator_->enqueue(rank, calls_[rank]);
    }
    const auto start = std::chrono::steady_clock::now();
    gate_.store(true);
    gate_.notify_all();
    for (Backend* backend : backends_) backend->synchronize();
    return std::chrono::duration<double>(std::chrono::steady_clock::now() - start).count();
  }

  /// Empty when every element of every rank is right.
  std::string verify() {
    run(1);
    for (int rank = 0; rank < size(); ++rank) {
      const std::vector<std::byte> expected = stored(expected_of(rank));
      for (size_t i = 0; i < expected.size(); ++i) {
        if (out_[rank][i] != expected[i]) return fmt::format("wrong at byte {} of rank {}", i, rank);
      }
    }
    return {};
  }

  double bus_factor() const {
    const double others = static_cast<double>(size() - 1) / size();
    if (kind_ == Collective::kAllReduce) return 2 * others;
    return kind_ == Collective::kBroadcast ? 1.0 : others;
  }

 private:
  int size() const { return static_cast<int>(backends_.size()); }
  static void wait_for_gate(void* gate, const void*, bool) { static_cast<std::atomic<bool>*>(gate)->wait(false); }

  /// Small integers, which every dtype here holds.
  std::vector<std::byte> stored(const std::vector<float>& values) const {
    const auto count = static_cast<int64_t>(values.size());
    std::vector<std::byte> bytes(bytes_for(dtype_, count));
    traits(dtype_).from_f32(values.data(), bytes.data(), count);
    return bytes;
  }
  std::vector<float> expected_of(int rank) const {
    const float sum = static_cast<float>(size() * (size() + 1) / 2);
    const size_t elements = in_[rank].size() / traits(dtype_).block_bytes;
    std::vector<float> expected;
    if (kind_ == Collective::kAllReduce) expected.assign(elements, sum);
    if (kind_ == Collective::kBroadcast) expected.assign(elements, 1.0f);
    if (kind_ == Collective::kReduceScatter) expected.assign(counts_[rank], sum);
    if (kind_ == Collective::kAllGather) {
      for (int from = 0; from < size(); ++from) expected.insert(expected.end(), counts_[from], from + 1.0f);
    }
    return expected;
  }

  const Collective kind_;
  const DType dtype_;
  std::atomic<bool> gate_{false};
  std::vector<std::unique_ptr<Backend>> owned_;
  std::vector<Backend*> backends_;
  std::vector<int64_t> counts_;
  std::vector<std::vector<std::byte>> in_, out_;
  std::vector<Call> calls_;
  std::unique_ptr<Communicator> communicator_;
};

void time_collective(benchmark::State& state, Collective kind, DType dtype) {
  const int64_t bytes = state.range(1);
  Collectives mesh(kind, dtype, static_cast<int>(state.range(0)),
                   bytes / static_cast<int64_t>(traits(dtype).block_bytes));
  if (const std::string problem = mesh.verify(); !problem.empty()) return state.SkipWithError(problem.c_str());
  while (state.KeepRunningBatch(kBatch)) state.SetIterationTime(mesh.run(kBatch));
  const double gigabytes = static_cast<double>(state.iterations()) * static_cast<double>(bytes) / 1e9;
  state.counters["alg_GB/s"] = benchmark::Counter(gigabytes, benchmark::Counter::kIsRate);
  state.counters["bus_GB/s"] = benchmark::Counter(gigabytes * mesh.bus_factor(), benchmark::Counter::kIsRate);
}

void sizes(benchmark::internal::Benchmark* benchmark) {
  benchmark->UseManualTime()->Unit(benchmark::kMicrosecond)->ArgNames({"ranks", "bytes"});
  for (int ranks : {2, 4}) {
    for (int64_t bytes = 1024; bytes <= 16 << 20; bytes *= 4) benchmark->Args({ranks, bytes});
  }
}
void no_bytes(benchmark::internal::Benchmark* benchmark) {
  benchmark->UseManualTime()->Unit(benchmark::kMicrosecond)->ArgNames({"ranks", "bytes"})->Args({2, 0})->Args({4, 0});
}

BENCHMARK_CAPTURE(time_collective, barrier, Collective::kBarrier, DType::kF32)->Apply(no_bytes);
BENCHMARK_CAPTURE(time_collective, all_reduce_f32, Collective::kAllReduce, DType::kF32)->Apply(sizes);
BENCHMARK_CAPTURE(time_collective, all_reduce_f16, Collective::kAllReduce, DType::kF16)->Apply(sizes);
BENCHMARK_CAPTURE(time_collective, all_reduce_bf16, Collective::kAllReduce, DType::kBF16)->Apply(sizes);
BENCHMARK_CAPTURE(time_collective, reduce_scatter_f32, Collective::kReduceScatter, DType::kF32)->Apply(sizes);
BENCHMARK_CAPTURE(time_collective, reduce_scatter_f16, Collective::kReduceScatter, DType::kF16)->Apply(sizes);
BENCHMARK_CAPTURE(time_collective, reduce_scatter_bf16, Collective::kReduceScatter, DType::kBF16)->Apply(sizes);
// These move bytes, whatever they mean.
BENCHMARK_CAPTURE(time_collective, all_gather, Collective::kAllGather, DType::kF32)->Apply(sizes);
BENCHMARK_CAPTURE(time_collective, broadcast, Collective::kBroadcast, DType::kF32)->Apply(sizes);

}  // namespace
}  // namespace shoal::collectives
