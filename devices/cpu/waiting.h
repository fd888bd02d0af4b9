// Threads of CPU devices wait in two phases: they spin briefly, then park. Spinning helps only while every computing
// thread has its own core. So the threads of all backends are counted, and no thread spins if there are more threads
// than cores. For example, with 16 devices on 2 cores, a spinning thread would keep a computing thread from its core.
#pragma once

#include <atomic>
#include <chrono>
#include <cstddef>
#include <cstdint>

namespace shoal::cpu {

/// Counts the threads of one backend while this object exists.
class ThreadCount {
 public:
  explicit ThreadCount(int threads);
  ~ThreadCount();
  ThreadCount(const ThreadCount&) = delete;
  ThreadCount& operator=(const ThreadCount&) = delete;

 private:
  int threads_;
};

/// Number of threads of all backends of this process.
int computing_thread_count();

enum class Waiter : uint8_t { kWorker, kHost };

/// Whether a thread may spin now. The count of computing threads does not include host threads. For a host thread, the
/// function adds 1 to the count.
bool may_spin(Waiter waiter);

/// Time for which a thread spins before it parks. This time is a little longer than a thread needs to park and wake. A
/// longer time would help only on an otherwise idle machine, because a spinning thread may use the core that the
/// awaited thread needs.
inline constexpr std::chrono::microseconds kSpinTime{100};

/// Bytes that cores exchange as a unit. Data that different threads write at the same time must be at least this many
/// bytes apart.
inline constexpr size_t kCacheLine = 64;

/// A count that grows. Threads wait until the count reaches a target. One thread at a time advances the count. Any
/// number of threads may wait. Waiting threads read the cache line of the count constantly. So this line must not
/// contain other data that changes.
class Counter {
 public:
  uint64_t value() const { return value_.load(std::memory_order_acquire); }
  /// A thread that sees the new value also sees all writes that the caller made before the call. If a parked thread
  /// waits for this value or a lower value, the function makes a system call that wakes threads.
  void advance_to(uint64_t value);
  /// Returns when value() >= target. The thread spins for kSpinTime, then parks.
  void wait_for(uint64_t target, Waiter waiter) const;
  /// Like wait_for() above, but waits at most `time`. Returns whether value() >= target.
  bool wait_for(uint64_t target, Waiter waiter, std::chrono::nanoseconds time) const;
  /// wait_for() consists of these two functions. spin_for() returns whether value() >= target. If threads may not spin,
  /// spin_for() returns at once.
  bool spin_for(uint64_t target, Waiter waiter, std::chrono::nanoseconds time) const;
  void park(uint64_t target) const { park_until(target, TimePoint::max()); }

 private:
  using TimePoint = std::chrono::steady_clock::time_point;

  void park_until(uint64_t target, TimePoint deadline) const;

  // advance_to() stores value_ and then loads wanted_. A parking thread lowers wanted_ and then loads value_. These
  // accesses need sequential consistency, because otherwise a thread could park after the last wake-up.
  static constexpr uint64_t kNone = UINT64_MAX;
  std::atomic<uint64_t> value_{0};
  mutable std::atomic<uint64_t> wanted_{kNone};  ///< lowest value that a parked thread waits for
  std::atomic<uint32_t> calls_{0};               ///< the futex word of parked threads; every wake-up increments it
};

}  // namespace shoal::cpu
