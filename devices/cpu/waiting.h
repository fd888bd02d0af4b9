// How threads of CPU devices wait: they spin briefly, then park. Spinning only pays while every thread that
// computes has a core of its own, so that the threads of all backends are counted and nobody spins in a crowd:
// with 16 devices on 2 cores a spinning thread would keep a computing one from its core.
#pragma once

#include <atomic>
#include <condition_variable>
#include <cstdint>
#include <mutex>

namespace shoal::cpu {

/// Counts the threads of one backend while it lives.
class ThreadCount {
 public:
  explicit ThreadCount(int threads);
  ~ThreadCount();
  ThreadCount(const ThreadCount&) = delete;
  ThreadCount& operator=(const ThreadCount&) = delete;

 private:
  int threads_;
};

enum class Waiter : uint8_t { kWorker, kHost };

/// May a thread spin now? A host thread is one more than those counted.
bool may_spin(Waiter waiter);

/// A count that only grows and that threads wait for. One thread advances it at a time, any number wait.
class Counter {
 public:
  uint64_t value() const { return value_.load(std::memory_order_acquire); }
  /// Everything done before is visible to whoever sees the new value. No system call when nobody is parked.
  void advance_to(uint64_t value);
  /// Returns when value() >= target.
  void wait_for(uint64_t target, Waiter waiter) const;

 private:
  // Store value / load parked on one side, add parked / load value on the other: both need sequential consistency,
  // or a thread could park after the last notification.
  std::atomic<uint64_t> value_{0};
  mutable std::atomic<int> parked_{0};
  mutable std::mutex mutex_;
  mutable std::condition_variable changed_;
};

/// Where the threads of a team meet. Reusable; every thread of the team calls with the same size.
class TeamBarrier {
 public:
  void meet(int threads);

 private:
  std::atomic<int> arrived_{0};
  Counter phase_;
};

}  // namespace shoal::cpu
