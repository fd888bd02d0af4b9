#include "devices/cpu/waiting.h"

#include <algorithm>
#include <thread>

#include "devices/cpu/futex.h"
#include "devices/cpu/topology.h"

#if defined(__x86_64__)
#include <immintrin.h>
#endif

namespace shoal::cpu {
namespace {

constexpr int kSpinsPerLook = 16;

std::atomic<int> computing_threads{0};

using Clock = std::chrono::steady_clock;

/// If a yield takes at least this time, another program has used the core. This time is longer than the host needs
/// between two tokens, and shorter than the time slices that the system gives to other programs.
constexpr std::chrono::microseconds kSlice{500};
constexpr std::chrono::milliseconds kShortestRefusal{20}, kLongestRefusal{1000};

/// Yields this core to a host thread. If every core has a computing thread, a ready host thread runs only when a
/// computing thread yields. All computing threads may depend on the host thread's progress. If another program takes
/// the core instead, the yield costs a whole time slice. After such a yield, this thread does not yield for a period.
/// If a yield soon after this period is also costly, the next period is twice as long.
void yield_core() {
  thread_local Clock::time_point refused_until;
  thread_local std::chrono::milliseconds refusal = kShortestRefusal;
  const auto begin = Clock::now();
  if (begin < refused_until) return;
  std::this_thread::yield();
  const auto end = Clock::now();
  if (end - begin < kSlice) return;
  if (begin - refused_until > kLongestRefusal) refusal = kShortestRefusal;
  refused_until = end + refusal;
  refusal = std::min(2 * refusal, kLongestRefusal);
}

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

int computing_thread_count() {
  return computing_threads.load(std::memory_order_relaxed);
}

bool may_spin(Waiter waiter) {
  return computing_threads.load(std::memory_order_relaxed) + (waiter == Waiter::kHost ? 1 : 0) <= usable_cores();
}

void Counter::advance_to(uint64_t value) {
  value_.store(value);
  if (value < wanted_.load()) return;
  wanted_.store(kNone);  // each thread that waits for a larger value sets wanted_ again
  calls_.fetch_add(1);
  futex_wake_all(calls_);
}

void Counter::wait_for(uint64_t target, Waiter waiter) const {
  if (!spin_for(target, waiter, kSpinTime)) park(target);
}

bool Counter::wait_for(uint64_t target, Waiter waiter, std::chrono::nanoseconds time) const {
  if (time <= time.zero()) return value() >= target;
  const auto deadline = Clock::now() + time;
  if (!spin_for(target, waiter, std::min<std::chrono::nanoseconds>(time, kSpinTime))) {
    park_until(target, deadline);
  }
  return value() >= target;
}

bool Counter::spin_for(uint64_t target, Waiter waiter, std::chrono::nanoseconds time) const {
  if (value() >= target) return true;
  if (!may_spin(waiter)) return false;
  const auto deadline = Clock::now() + time;
  do {
    for (int i = 0; i < kSpinsPerLook; ++i) {
      pause();
      if (value() >= target) return true;
    }
    if (!may_spin(Waiter::kHost)) yield_core();
  } while (Clock::now() < deadline);
  return false;
}

void Counter::park_until(uint64_t target, TimePoint deadline) const {
  for (;;) {
    const uint32_t calls = calls_.load();
    uint64_t wanted = wanted_.load();
    while (target < wanted && !wanted_.compare_exchange_weak(wanted, target)) {
    }
    if (value_.load() >= target) return;
    const bool ends = deadline != TimePoint::max();
    const auto left = ends ? deadline - Clock::now() : std::chrono::nanoseconds(0);
    if (ends && left <= left.zero()) return;
    ends ? futex_wait(calls_, calls, left) : futex_wait(calls_, calls);
  }
}

}  // namespace shoal::cpu
