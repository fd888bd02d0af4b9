// Rendezvous: the place where the N ranks of a host communicator meet, and where its failure is kept.
// meet() returns on every rank once all N have called it, and everything a rank wrote before is then visible to
// all others. A rank that does not come within the time-out, or a call of fail(), makes every present and later
// meet() throw the same CommError. meet(rank, ...) is called by one thread for each rank; the rest by any thread.
//
// A waiting rank spins for a moment (the others are usually microseconds away), then parks in the kernel. With
// more ranks than cores, or more threads of all CPU devices than cores, no thread spins: the one that we wait for may
// need this very core.
//
//   step    0      1          2
//   rank 0  ----meet          |    arrivals_ counts to N; the last to come sets it back to 0, moves complete_
//   rank 1  --meet.. waits ...|    on to the new step and wakes those who parked on complete_.
#pragma once

#include <atomic>
#include <chrono>
#include <cstdint>
#include <memory>
#include <mutex>
#include <string>
#include <string_view>

#include "collectives/communicator.h"
#include "devices/timeouts.h"

namespace shoal::collectives::host {

inline constexpr size_t kCacheLine = 64;

class Rendezvous {
 public:
  Rendezvous(int ranks, const Options& options);

  int size() const { return ranks_; }

  /// Arrives and waits for the others. `call` is for the message only. Throws CommError.
  void meet(int rank, const Call& call);

  /// Makes every present and later meet() throw CommError(message). False: there has been a message, which is kept.
  bool fail(std::string_view message);

  /// Throws the CommError if there was a failure.
  void throw_if_failed();

 private:
  using Clock = std::chrono::steady_clock;

  bool is_failed() const { return complete_.load(std::memory_order_acquire) == kFailed; }
  bool spin(uint32_t step) const;
  void park(uint32_t step);
  void fail_for_the_missing(uint32_t step, const Call& call);

  // A step's number is only ever compared for equality, so it may wrap; kFailed is left out.
  static constexpr uint32_t kFailed = UINT32_MAX;
  static uint32_t next(uint32_t step) { return step + 1 == kFailed ? 0 : step + 1; }

  /// Who has come: each rank's latest step, read by others only to name the missing.
  struct alignas(kCacheLine) Seat {
    std::atomic<uint32_t> step{0};
  };

  const int ranks_;
  const std::chrono::milliseconds timeout_;
  const std::chrono::nanoseconds spin_;
  const std::unique_ptr<Seat[]> seats_;
  alignas(kCacheLine) std::atomic<int> arrivals_{0};
  /// Latest complete step, or kFailed for good. The word on which waiting ranks park.
  alignas(kCacheLine) std::atomic<uint32_t> complete_{0};
  std::atomic<int> parked_{0};
  TimeoutReport report_;
  std::mutex mutex_;
  std::string failure_;  ///< guarded by mutex_; set before complete_ becomes kFailed
};

}  // namespace shoal::collectives::host
