#include "devices/cpu/waiting.h"

#include "devices/cpu/topology.h"

#if defined(__x86_64__)
#include <immintrin.h>
#endif

namespace shoal::cpu {
namespace {

/// About 20 to 50 microseconds: a little more than parking and being woken costs.
constexpr int kSpins = 600;

std::atomic<int> computing_threads{0};

void pause() {
#if defined(__x86_64__)
  _mm_pause();
#elif defined(__aarch64__)
  asm volatile("yield");
#endif
}

}  // namespace

ThreadCount::ThreadCount(int threads) : threads_(threads) {
  computing_threads += threads;
}
ThreadCount::~ThreadCount() {
  computing_threads -= threads_;
}

bool may_spin(Waiter waiter) {
  static const int cores = machine_cores();
  return computing_threads.load(std::memory_order_relaxed) + (waiter == Waiter::kHost ? 1 : 0) <= cores;
}

void Counter::advance_to(uint64_t value) {
  value_.store(value);
  if (parked_.load() == 0) return;
  const std::lock_guard lock(mutex_);
  changed_.notify_all();
}

void Counter::wait_for(uint64_t target, Waiter waiter) const {
  for (int i = may_spin(waiter) ? kSpins : 0; i > 0; --i) {
    if (value() >= target) return;
    pause();
  }
  if (value() >= target) return;
  parked_.fetch_add(1);
  std::unique_lock lock(mutex_);
  changed_.wait(lock, [&] { return value_.load() >= target; });
  parked_.fetch_sub(1);
}

}  // namespace shoal::cpu
