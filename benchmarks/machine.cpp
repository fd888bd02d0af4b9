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

#include "benchmarks/machine_loops.h"
#include "devices/cpu/isa.h"
#include "devices/cpu/topology.h"
#include "devices/params.h"
#include "graph/error.h"

namespace shoal::bench {

// Defined in machine_loops.cpp, once per level.
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
  check(level == "baseline", "there is no loop for the level {}", level);
  return baseline::kLoops;
}

std::vector<int> cores() {
  std::vector<int> all;
  for (const cpu::Node& node : cpu::machine_nodes()) all.insert(all.end(), node.cores.begin(), node.cores.end());
  return all;
}

using Work = std::function<void()>;

/// `prepare` makes the work of a thread, on that thread and its core. Seconds of the fastest of some attempts, from the
/// common start until the last thread is done.
double fastest(int threads, const std::function<Work()>& prepare) {
  const std::vector<int> places = cores();
  std::barrier<> meet(threads);
  double best = 1e30;
  const auto body = [&](int thread) {
    const int core = places[static_cast<size_t>(thread) % places.size()];
    cpu::bind_thread({&core, 1});
    const Work work = prepare();
    for (int attempt = 0; attempt < kAttempts; ++attempt) {
      meet.arrive_and_wait();
      const auto start = std::chrono::steady_clock::now();
      work();
      meet.arrive_and_wait();
      const std::chrono::duration<double> time = std::chrono::steady_clock::now() - start;
      if (thread == 0) best = std::min(best, time.count());
    }
  };
  std::vector<std::thread> team;
  for (int thread = 0; thread < threads; ++thread) team.emplace_back(body, thread);
  for (std::thread& thread : team) thread.join();
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
                      check(memory != nullptr, "no memory for {} bytes", share);
                      madvise(memory.get(), share, MADV_HUGEPAGE);  // a wish; without it the figure is smaller
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
  constexpr int64_t kRounds = 2'000'000;  // some ten milliseconds
  const double seconds = fastest(threads, [loop]() -> Work { return [loop] { loop(kRounds); }; });
  return ops * kRounds * threads / seconds;
}

/// Keeps what was measured for each number of threads.
class Kept {
 public:
  double get(int threads, const std::function<double()>& measure) {
    require<InvalidArgument>(threads > 0, "[machine] expected at least one thread, got {}", threads);
    const std::lock_guard lock(mutex_);
    const auto [at, is_new] = values_.try_emplace(threads);
    if (is_new) at->second = measure();
    return at->second;
  }

 private:
  std::mutex mutex_;
  std::map<int, double> values_;
};

}  // namespace

double read_bandwidth(int threads) {
  static Kept kept;
  return kept.get(threads, [threads] { return measure_reading(threads); });
}

double f32_peak(int threads) {
  static Kept kept;
  return kept.get(threads, [threads] { return measure_peak(threads, loops().f32, loops().f32_ops); });
}

double int8_peak(int threads) {
  static Kept kept;
  return kept.get(threads, [threads] { return measure_peak(threads, loops().int8, loops().int8_ops); });
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
  // Shared by at least eight cores where there are more of them; virtual machines often do not say.
  const size_t caches = cache_bytes() * ((all + 7) / 8);
  return std::clamp(8 * caches, size_t{256} << 20, size_t{4} << 30);
}

}  // namespace shoal::bench
