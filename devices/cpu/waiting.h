// How threads of CPU devices wait: they spin briefly, then park. Spinning only pays while every thread that
// computes has a core of its own, so that the threads of all backends are counted and no thread spins in a crowd:
// with 16 devices on 2 cores a spinning thread would keep a computing one from its core.
#pragma once

#include <atomic>
#include <chrono>
#include <cstddef>
#include <cstdint>

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

/// Of all backends of this process.
int computing_thread_count();

enum class Waiter : uint8_t { kWorker, kHost };

/// May a thread spin now? A host thread is one more than those counted.
bool may_spin(Waiter waiter);

/// A little more than parking and being woken costs. Longer would only help while nothing else runs on the machine:
/// a thread that spins keeps its core from the one it waits for.
inline constexpr std::chrono::microseconds kSpinTime{100};

/// Bytes that a core takes from another one together. What different threads write at the same time lies this far
/// apart.
inline constexpr size_t kCacheLine = 64;

/// A count that only grows and that threads wait for. One thread advances it at a time, any number wait. Waiting
/// threads take its cache line all the time: others must not write to it for other reasons.
class Counter {
 public:
  uint64_t value() const { return value_.load(std::memory_order_acquire); }
  /// Everything done before is visible to threads that see the new value. No system call, and no thread is woken,
  /// before a value that a parked thread waits for.
  void advance_to(uint64_t value);
  /// Returns when value() >= target: spins for kSpinTime, then parks.
  void wait_for(uint64_t target, Waiter waiter) const;
  /// The same, but for so long at most; returns value() >= target.
  bool wait_for(uint64_t target, Waiter waiter, std::chrono::nanoseconds time) const;
  /// Its two halves. True: value() >= target; false at once where threads may not spin.
  bool spin_for(uint64_t target, Waiter waiter, std::chrono::nanoseconds time) const;
  void park(uint64_t target) const { park_until(target, TimePoint::max()); }

 private:
  using TimePoint = std::chrono::steady_clock::time_point;

  void park_until(uint64_t target, TimePoint deadline) const;

  // Store value / load wanted on one side, lower wanted / load value on the other: both need sequential consistency,
  // or a thread could park after the last call.
  static constexpr uint64_t kNone = UINT64_MAX;
  std::atomic<uint64_t> value_{0};
  mutable std::atomic<uint64_t> wanted_{kNone};  ///< least value that a parked thread waits for
  std::atomic<uint32_t> calls_{0};               ///< the word that they sleep on; moves on whenever they are called
};

}  // namespace shoal::cpu
