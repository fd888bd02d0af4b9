// Verifies and times collectives among CPU devices. A gate stops all ranks while the benchmark queues a batch of
// collectives, so the measured time does not include the queueing. The times are per collective. Counters:
//
// - `alg_GB/s`: message size divided by the time.
// - `bus_GB/s`: minimum traffic of each rank, divided by the time. This traffic is the message size multiplied by
//   bus_factor() of the collective. So bus rates for different numbers of ranks are comparable.
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

/// The backends of CPU devices with one thread each, and one collective with messages of `count` elements.
class Collectives {
 public:
  Collectives(Collective kind, DType dtype, int ranks, int64_t count) : kind_(kind), dtype_(dtype) {
    cpu::configure(fmt::format("devices={},threads=1", ranks));
    for (int rank = 0; rank < ranks; ++rank) {
      owned_.push_back(Registry::instance().device(fmt::format("CPU{}", rank)).init());
      backends_.push_back(owned_.back().get());
    }
    const auto parts = static_cast<int64_t>(info(kind).counts(ranks));
    const int64_t total = info(kind).is_pairwise() ? count * ranks : count;
    for (int64_t i = 0; i < parts; ++i) counts_.push_back(total * (i + 1) / parts - total * i / parts);
    communicator_ = make_host_communicator(backends_);
    const Amounts amounts{ranks, counts_.empty() ? count : 0, counts_};
    for (int rank = 0; rank < ranks; ++rank) {
      in_.push_back(stored(std::vector<float>(elements_in(kind, amounts, rank), static_cast<float>(rank + 1))));
      out_.emplace_back(bytes_for(dtype, elements_out(kind, amounts, rank)));
      calls_.push_back({kind, dtype, in_[rank].data(), out_[rank].data(), amounts.count, counts_, 0, "benchmark"});
    }
  }

  /// Runs the collective `times` times. Returns the total seconds.
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

  /// Returns an empty string if every element of every rank is correct.
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

 private:
  int size() const { return static_cast<int>(backends_.size()); }
  static void wait_for_gate(void* gate, const void*, bool) { static_cast<std::atomic<bool>*>(gate)->wait(false); }

  /// Encodes values in the dtype of the collective. The values must be small integers, which every dtype here can
  /// represent.
  std::vector<std::byte> stored(const std::vector<float>& values) const {
    const auto count = static_cast<int64_t>(values.size());
    std::vector<std::byte> bytes(bytes_for(dtype_, count));
    traits(dtype_).from_f32(values.data(), bytes.data(), count);
    return bytes;
  }
  std::vector<float> expected_of(int rank) const {
    const Amounts amounts = calls_[rank].amounts(size());
    std::vector<float> expected;
    if (info(kind_).sums) {
      expected.assign(elements_out(kind_, amounts, rank), static_cast<float>(size() * (size() + 1) / 2));
      return expected;
    }
    for (int from = 0; from < size(); ++from) {
      expected.insert(expected.end(), elements_between(kind_, amounts, from, rank), from + 1.0f);
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
  state.counters["bus_GB/s"] =
      benchmark::Counter(gigabytes * bus_factor(kind, static_cast<int>(state.range(0))), benchmark::Counter::kIsRate);
}

void sizes(benchmark::internal::Benchmark* benchmark) {
  benchmark->UseManualTime()->Unit(benchmark::kMicrosecond)->ArgNames({"ranks", "bytes"});
  for (int ranks : {2, 4}) {
    for (int64_t bytes = 1024; bytes <= 16 << 20; bytes *= 4) benchmark->Args({ranks, bytes});
  }
}
/// Collectives with a sum are timed for each dtype. All other collectives only move bytes, so one dtype is enough.
const bool kRegistered = [] {
  for (const Collective kind : kCollectives) {
    for (const DType dtype : {DType::kF32, DType::kF16, DType::kBF16}) {
      const bool sums = info(kind).sums;
      if (!sums && dtype != DType::kF32) continue;
      const std::string name =
          fmt::format("time_collective/{}{}{}", name_of(kind), sums ? "_" : "", sums ? name_of(dtype) : "");
      benchmark::RegisterBenchmark(name.c_str(), time_collective, kind, dtype)->Apply(sizes);
    }
  }
  return true;
}();

}  // namespace
}  // namespace shoal::collectives
