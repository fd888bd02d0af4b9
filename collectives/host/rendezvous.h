// Rendezvous: a barrier for the N ranks of a communicator on one computer. A Rendezvous also stores the communicator's
// failure. The state of the barrier is in the memory of this process or in memory shared by the ranks' processes.
// meet() returns on every rank after all N ranks have called it. After meet(), all ranks see the writes that any rank
// made before the meeting. If a rank does not arrive within the time-out, or if fail() is called, every current and
// later meet() throws the same CommError. One thread per rank calls meet(rank, ...); any thread may call the other
// functions.
//
// A waiting rank first spins, because the other ranks usually arrive within microseconds. It then parks (sleeps in the
// kernel). No thread spins if there are more ranks than cores, or more threads of CPU devices than cores. In these
// cases, a late rank may need the core of the waiting rank.
//
//   step    0      1          2
//   rank 0  ----meet          |    `arrivals` counts to N; the last rank resets it to 0, sets `complete`
//   rank 1  --meet.. waits ...|    to the new step, and wakes the ranks that parked on `complete`.
#pragma once

#include <array>
#include <atomic>
#include <chrono>
#include <cstdint>
#include <functional>
#include <memory>
#include <span>
#include <string>
#include <string_view>

#include "collectives/communicator.h"
#include "devices/cpu/futex.h"
#include "devices/timeouts.h"

namespace shoal::collectives::host {

inline constexpr size_t kCacheLine = 64;

/// The state of a Rendezvous. All ranks can access this memory. All bytes are initially zero.
struct RendezvousState {
  alignas(kCacheLine) std::atomic<int> arrivals{0};
  /// The latest complete step, or kFailed after a failure. Waiting ranks sleep on this word (futex).
  alignas(kCacheLine) std::atomic<uint32_t> complete{0};
  std::atomic<int> parked{0};
  alignas(kCacheLine) std::atomic<uint32_t> is_reporting{0};  ///< 1 after a rank has started to write the failure
                                                              ///< message
  std::array<char, 2000> failure{};                           ///< written before `complete` becomes kFailed
};

/// The latest step at which the rank arrived. Other ranks read the step only to name missing ranks.
struct alignas(kCacheLine) Seat {
  std::atomic<uint32_t> step{0};
};

class Rendezvous {
 public:
  /// Called on a rank's thread if the ranks `missing` do not arrive in time. The callback must call fail().
  using Missing = std::function<void(std::span<const int> missing, const Call& call, std::chrono::nanoseconds waited)>;

  /// Stores the state in this object.
  Rendezvous(int ranks, const Options& options);
  /// Uses state in memory shared with other processes. Each process makes its own Rendezvous over this memory. `seats`
  /// has one element per rank.
  Rendezvous(RendezvousState& state, std::span<Seat> seats, const Options& options, Missing missing);

  ~Rendezvous();

  int size() const { return static_cast<int>(seats_.size()); }

  /// Arrives at the meeting and waits for the other ranks. `call` is used only for the error message. Throws CommError.
  void meet(int rank, const Call& call) { meet(rank, call, timeout_); }
  /// Uses `timeout` instead of the time-out in Options.
  void meet(int rank, const Call& call, std::chrono::nanoseconds timeout);

  /// Makes every current and later meet() throw CommError(message). Truncates a long message. If there was an earlier
  /// failure, keeps the message of that failure and returns false.
  bool fail(std::string_view message);

  bool is_failed() const { return state_.complete.load(std::memory_order_acquire) == kFailed; }
  /// Throws the stored CommError after a failure.
  void throw_if_failed() const {
    if (is_failed()) throw_failure();
  }

 private:
  using Clock = std::chrono::steady_clock;
  struct Own;

  Rendezvous(std::unique_ptr<Own> own, const Options& options);
  bool spin(uint32_t step) const;
  void park(uint32_t step, std::chrono::nanoseconds timeout);
  void fail_for_the_missing(uint32_t step, const Call& call, std::chrono::nanoseconds timeout);
  void publish(std::string_view message);
  [[noreturn]] void throw_failure() const;

  // Step numbers are only compared for equality, so they may wrap around. No step has the number kFailed.
  static constexpr uint32_t kFailed = UINT32_MAX;
  static uint32_t next(uint32_t step) { return step + 1 == kFailed ? 0 : step + 1; }

  const std::unique_ptr<Own> own_;  ///< null if the memory is shared
  RendezvousState& state_;
  const std::span<Seat> seats_;
  const cpu::Parking parking_;
  const std::chrono::nanoseconds timeout_;
  const std::chrono::nanoseconds spin_;
  const Missing missing_;
  TimeoutReport report_;
};

/// Example: "[all_reduce x] rank 1, 3 of 4 did not arrive within 30.000 s; ...". If `names` is empty, the message says
/// "at least one rank" instead of rank numbers.
std::string missing_message(const Call& call, std::span<const std::string> names, int ranks,
                            std::chrono::nanoseconds waited);

}  // namespace shoal::collectives::host
