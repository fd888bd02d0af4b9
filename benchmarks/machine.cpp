#include "benchmarks/machine.h"

#include <fmt/format.h>
#include <sys/mman.h>

#include <algorithm>
#include <array>
#include <barrier>
#include <chrono>
#include <cstdlib>
#include <cstring>
#include <fstream>
#include <functional>
#include <map>
#include <memory>
#include <mutex>
#include <string>
#include <thread>
#include <vector>

#include "base/error.h"
#include "base/text.h"
#include "benchmarks/machine_loops.h"
#include "devices/cpu/isa.h"
#include "devices/cpu/topology.h"

namespace shoal::bench {

// machine_loops.cpp defines these loops, once per instruction-set level.
namespace baseline {
extern const Loops kLoops;
}
#ifdef SHOAL_X86
namespace avx2 {
extern const Loops kLoops;
}
namespace avx512 {
extern const Loops kLoops;
}
#endif

namespace {

constexpr size_t kHugePage = 2 << 20;
constexpr int kAttempts = 5;

const Loops& loops() {
  const std::string_view level = cpu::level_in_use();
#ifdef SHOAL_X86
  if (level == "avx512") return avx512::kLoops;
  if (level == "avx2") return avx2::kLoops;
#endif
  check(level == "baseline", "no loops were compiled for the instruction-set level {}", level);
  return baseline::kLoops;
}

std::vector<int> cores() {
  std::vector<int> all;
  for (const cpu::Node& node : cpu::machine_nodes()) all.insert(all.end(), node.cores.begin(), node.cores.end());
  return all;
}

using Work = std::function<void()>;

struct Times {
  std::chrono::steady_clock::time_point begin, end;
};

/// Runs work on `threads` threads several times, and returns the seconds of the fastest attempt. Each thread is bound
/// to its core and calls `prepare` to get its work. An attempt lasts from the start of the first thread to the end of
/// the last thread. Every thread reads the clock itself, because some threads may wake late.
double fastest(int threads, const std::function<Work()>& prepare) {
  const std::vector<int> places = cores();
  std::barrier<> meet(threads);
  std::vector<std::array<Times, kAttempts>> times(static_cast<size_t>(threads));
  const auto body = [&](int thread) {
    const int core = places[static_cast<size_t>(thread) % places.size()];
    cpu::bind_thread({&core, 1});
    const Work work = prepare();
    for (Times& attempt : times[static_cast<size_t>(thread)]) {
      meet.arrive_and_wait();
      attempt.begin = std::chrono::steady_clock::now();
      work();
      attempt.end = std::chrono::steady_clock::now();
    }
  };
  std::vector<std::thread> team;
  for (int thread = 0; thread < threads; ++thread) team.emplace_back(body, thread);
  for (std::thread& thread : team) thread.join();
  double best = 1e30;
  for (size_t attempt = 0; attempt < kAttempts; ++attempt) {
    Times all = times[0][attempt];
    for (const auto& own : times) {
      all.begin = std::min(all.begin, own[attempt].begin);
      all.end = std::max(all.end, own[attempt].end);
    }
    best = std::min(best, std::chrono::duration<double>(all.end - all.begin).count());
  }
  return best;
}

struct Free {
  void operator()(void* data) const { std::free(data); }
};

double measure_reading(int threads) {
  constexpr std::array kStreams{1, 2, 4, 8};
  const size_t share = (beyond_caches() / static_cast<size_t>(threads) / kHugePage + 1) * kHugePage;
  double best = 1e30;
  for (const int streams : kStreams) {
    best = std::min(best, fastest(threads, [&]() -> Work {
                      std::shared_ptr<void> memory(std::aligned_alloc(kHugePage, share), Free{});
                      check(memory != nullptr, "cannot allocate {} bytes", share);
                      madvise(memory.get(), share, MADV_HUGEPAGE);  // may fail; the bandwidth is then lower
                      std::memset(memory.get(), 1, share);
                      return [memory, share, streams] {
                        volatile uint64_t sum = loops().read(static_cast<std::byte*>(memory.get()), share, streams);
                        static_cast<void>(sum);
                      };
                    }));
  }
  return static_cast<double>(share) * threads / best;
}

double measure_peak(int threads, void (*loop)(int64_t), double ops) {
  constexpr int64_t kRounds = 2'000'000;  // these rounds take tens of milliseconds
  const double seconds = fastest(threads, [loop]() -> Work { return [loop] { loop(kRounds); }; });
  return ops * kRounds * threads / seconds;
}

/// Caches the result of a measurement for each number of threads.
class Kept {
 public:
  double get(int threads, const std::function<double(int)>& measure) {
    const int used = measured_threads(threads);
    const std::lock_guard lock(mutex_);
    const auto [at, is_new] = values_.try_emplace(used);
    if (is_new) at->second = measure(used);
    return at->second;
  }

 private:
  std::mutex mutex_;
  std::map<int, double> values_;
};

}  // namespace

int measured_threads(int threads) {
  require<InvalidArgument>(threads > 0, "[machine] expected at least one thread, got {}", threads);
  return std::min(threads, cpu::usable_cores());
}

double read_bandwidth(int threads) {
  static Kept kept;
  return kept.get(threads, measure_reading);
}

double f32_peak(int threads) {
  static Kept kept;
  return kept.get(threads, [](int used) { return measure_peak(used, loops().f32, loops().f32_ops); });
}

double int16_peak(int threads) {
  static Kept kept;
  return kept.get(threads, [](int used) { return measure_peak(used, loops().int16, loops().int16_ops); });
}

double int8_peak(int threads) {
  static Kept kept;
  return kept.get(threads, [](int used) { return measure_peak(used, loops().int8, loops().int8_ops); });
}

size_t cache_bytes() {
  size_t largest = 0;
  for (int index = 0; index < 8; ++index) {
    std::ifstream file(fmt::format("/sys/devices/system/cpu/cpu0/cache/index{}/size", index));
    std::string text;
    if (file >> text) largest = std::max(largest, parse_bytes(text));
  }
  return largest != 0 ? largest : size_t{32} << 20;
}

size_t beyond_caches() {
  size_t all = 0;
  for (const cpu::Node& node : cpu::machine_nodes()) all += node.cores.size();
  // Assumes one last-level cache per eight cores, because virtual machines often do not report which cores share a
  // cache.
  const size_t caches = cache_bytes() * ((all + 7) / 8);
  return std::clamp(8 * caches, size_t{256} << 20, size_t{4} << 30);
}

}  // namespace shoal::bench
