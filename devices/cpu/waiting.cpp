#include "devices/cpu/waiting.h"

#include <chrono>
#include <thread>

#include "devices/cpu/futex.h"
#include "devices/cpu/topology.h"

#if defined(__x86_64__)
#include <immintrin.h>
#endif

namespace shoal::cpu {
namespace {

/// A little more than parking and being woken costs. Longer would only help while nothing else runs on the machine:
/// a thread that spins keeps its core from the one it waits for.
constexpr std::chrono::microseconds kSpinTime{100};
constexpr int kSpinsPerLook = 16;

std::atomic<int> computing_threads{0};
/// A host thread has been woken and does not run yet. Where every core has a thread that computes, it only runs when
/// one of these lets it: those that spin would keep it waiting until they park. A hint, of no harm where it is late.
std::atomic<bool> host_called{false};

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
  return computing_threads.load(std::memory_order_relaxed) + (waiter == Waiter::kHost ? 1 : 0) <= usable_cores();
}

void Counter::advance_to(uint64_t value) {
  value_.store(value);
  if (value < wanted_.load()) return;
  wanted_.store(kNone);  // those who wait for more say so again
  if (hosts_.load() > 0 && !may_spin(Waiter::kHost)) host_called = true;
  calls_.fetch_add(1);
  futex_wake_all(calls_);
}

void Counter::wait_for(uint64_t target, Waiter waiter) const {
  if (value() >= target) return;
  if (may_spin(waiter)) {
    const auto deadline = std::chrono::steady_clock::now() + kSpinTime;
    do {
      for (int i = 0; i < kSpinsPerLook; ++i) {
        pause();
        if (value() >= target) return;
      }
      if (host_called.load(std::memory_order_relaxed)) std::this_thread::yield();
    } while (std::chrono::steady_clock::now() < deadline);
  }
  for (;;) {
    const uint32_t calls = calls_.load();
    uint64_t wanted = wanted_.load();
    while (target < wanted && !wanted_.compare_exchange_weak(wanted, target)) {
    }
    if (value_.load() >= target) return;
    if (waiter == Waiter::kHost) ++hosts_;
    futex_wait(calls_, calls);
    if (waiter == Waiter::kHost) --hosts_, host_called = false;
  }
}

void TeamBarrier::meet(int threads) {
  const uint64_t phase = phase_.value();
  if (arrived_.fetch_add(1) + 1 < threads) return phase_.wait_for(phase + 1, Waiter::kWorker);
  arrived_.store(0);
  phase_.advance_to(phase + 1);
}

}  // namespace shoal::cpu
