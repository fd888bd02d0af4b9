// Rendezvous: the place where the N ranks of a communicator that live on one computer meet, and where its failure is
// kept: in memory of this process, or in memory that the ranks' processes share.
// meet() returns on every rank once all N have called it, and everything a rank wrote before is then visible to
// all others. A rank that does not come within the time-out, or a call of fail(), makes every present and later
// meet() throw the same CommError. meet(rank, ...) is called by one thread for each rank; the rest by any thread.
//
// A waiting rank spins for a moment (the others are usually microseconds away), then parks in the kernel. With
// more ranks than cores, or more threads of all CPU devices than cores, no thread spins: the one that we wait for may
// need this very core.
//
//   step    0      1          2
//   rank 0  ----meet          |    `arrivals` counts to N; the last to come sets it back to 0, moves `complete`
//   rank 1  --meet.. waits ...|    on to the new step and wakes those who parked on `complete`.
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

/// What is in the memory that all ranks see; zeroes at first.
struct RendezvousState {
  alignas(kCacheLine) std::atomic<int> arrivals{0};
  /// Latest complete step, or kFailed for good. The word on which waiting ranks park.
  alignas(kCacheLine) std::atomic<uint32_t> complete{0};
  std::atomic<int> parked{0};
  alignas(kCacheLine) std::atomic<uint32_t> speaks{0};  ///< a rank writes, or has written, why it failed
  std::array<char, 2000> failure{};                     ///< written before `complete` becomes kFailed
};

/// Who has come: each rank's latest step, read by others only to name the missing.
struct alignas(kCacheLine) Seat {
  std::atomic<uint32_t> step{0};
};

class Rendezvous {
 public:
  /// Called on a rank's thread when `missing` have not come in time; must call fail().
  using Missing = std::function<void(std::span<const int> missing, const Call& call, std::chrono::nanoseconds waited)>;

  /// In memory of its own.
  Rendezvous(int ranks, const Options& options);
  /// In memory shared with other processes, which make one over it, too; as many seats as ranks.
  Rendezvous(RendezvousState& state, std::span<Seat> seats, const Options& options, Missing missing);

  ~Rendezvous();

  int size() const { return static_cast<int>(seats_.size()); }

  /// Arrives and waits for the others. `call` is for the message only. Throws CommError.
  void meet(int rank, const Call& call) { meet(rank, call, timeout_); }
  /// The same with a time-out of its own.
  void meet(int rank, const Call& call, std::chrono::nanoseconds timeout);

  /// Makes every present and later meet() throw CommError(message), or as much of it as there is room for. False:
  /// there has been a message, which is kept.
  bool fail(std::string_view message);

  bool is_failed() const { return state_.complete.load(std::memory_order_acquire) == kFailed; }
  /// Throws the CommError if there was a failure.
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

  // A step's number is only ever compared for equality, so it may wrap; kFailed is left out.
  static constexpr uint32_t kFailed = UINT32_MAX;
  static uint32_t next(uint32_t step) { return step + 1 == kFailed ? 0 : step + 1; }

  const std::unique_ptr<Own> own_;  ///< null where the memory is shared
  RendezvousState& state_;
  const std::span<Seat> seats_;
  const cpu::Parking parking_;
  const std::chrono::nanoseconds timeout_;
  const std::chrono::nanoseconds spin_;
  const Missing missing_;
  TimeoutReport report_;
};

/// "[all_reduce x] rank 1, 3 of 4 did not arrive within 30.000 s; ...". No `names`: the last rank, whichever it was.
std::string missing_message(const Call& call, std::span<const std::string> names, int ranks,
                            std::chrono::nanoseconds waited);

}  // namespace shoal::collectives::host
