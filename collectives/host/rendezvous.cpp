#include "collectives/host/rendezvous.h"

#include <algorithm>
#include <thread>
#include <vector>

#include <fmt/ranges.h>

#include "base/error.h"
#include "devices/cpu/futex.h"
#include "devices/cpu/waiting.h"

#if defined(__x86_64__)
#include <immintrin.h>
#endif

namespace shoal::collectives::host {
namespace {

void pause() {
#if defined(__x86_64__)
  _mm_pause();
#else
  std::atomic_signal_fence(std::memory_order_seq_cst);
#endif
}

std::chrono::nanoseconds spin_time(int ranks, const Options& options) {
  const bool core_for_each = static_cast<unsigned>(ranks) <= std::thread::hardware_concurrency();
  return core_for_each ? std::chrono::nanoseconds(options.spin) : std::chrono::nanoseconds(0);
}

double seconds(std::chrono::steady_clock::duration duration) {
  return std::chrono::duration<double>(duration).count();
}

}  // namespace

Rendezvous::Rendezvous(int ranks, const Options& options)
    : ranks_(ranks),
      timeout_(options.timeout),
      spin_(spin_time(ranks, options)),
      seats_(std::make_unique<Seat[]>(ranks)) {}

void Rendezvous::meet(int rank, const Call& call) {
  std::atomic<uint32_t>& own = seats_[rank].step;
  const uint32_t before = own.load(std::memory_order_relaxed);
  const uint32_t step = next(before);
  throw_if_failed();
  own.store(step, std::memory_order_relaxed);
  // acq_rel: each arrival passes on what all earlier arrivals wrote, so the last one publishes the writes of all.
  if (arrivals_.fetch_add(1, std::memory_order_acq_rel) + 1 == ranks_) {
    arrivals_.store(0, std::memory_order_relaxed);
    uint32_t expected = before;
    // An exchange, not a store: a failure that came meanwhile must stay. seq_cst pairs with park().
    complete_.compare_exchange_strong(expected, step, std::memory_order_seq_cst);
    if (parked_.load(std::memory_order_seq_cst) > 0) cpu::futex_wake_all(complete_);
  } else if (!spin(step)) {
    park(step);
  }
  const uint32_t complete = complete_.load(std::memory_order_acquire);
  if (complete != step && complete != kFailed) fail_for_the_missing(step, call);
  throw_if_failed();
}

bool Rendezvous::spin(uint32_t step) const {
  const auto done = [&] {
    const uint32_t complete = complete_.load(std::memory_order_acquire);
    return complete == step || complete == kFailed;
  };
  if (done()) return true;
  if (spin_.count() == 0 || !cpu::may_spin(cpu::Waiter::kWorker)) return false;
  const Clock::time_point end = Clock::now() + spin_;
  constexpr int kPausesPerLookAtTheClock = 16;
  do {
    for (int i = 0; i < kPausesPerLookAtTheClock; ++i) {
      pause();
      if (done()) return true;
    }
  } while (Clock::now() < end);
  return false;
}

// In slices, of which none counts for more than its length: a process that was stopped for an hour has not waited for
// an hour.
void Rendezvous::park(uint32_t step) {
  constexpr std::chrono::nanoseconds kSlice = std::chrono::seconds(1);
  // Counted before the word is read again: either the last to arrive sees us, or we see its step.
  parked_.fetch_add(1, std::memory_order_seq_cst);
  uint32_t complete = complete_.load(std::memory_order_seq_cst);
  std::chrono::nanoseconds left = timeout_;
  while (complete != step && complete != kFailed && left.count() > 0) {
    const Clock::time_point before = Clock::now();
    const std::chrono::nanoseconds slice = std::min(kSlice, left);
    cpu::futex_wait(complete_, complete, slice);
    left -= std::min<std::chrono::nanoseconds>(Clock::now() - before, slice);
    complete = complete_.load(std::memory_order_seq_cst);
  }
  parked_.fetch_sub(1, std::memory_order_relaxed);
}

void Rendezvous::fail_for_the_missing(uint32_t step, const Call& call) {
  std::vector<int> missing;
  for (int rank = 0; rank < ranks_; ++rank) {
    if (seats_[rank].step.load(std::memory_order_relaxed) != step) missing.push_back(rank);
  }
  // They may all have come since the deadline passed; then it was late, and the step cannot be saved any more.
  const std::string who = missing.empty() ? "the last rank" : fmt::format("rank {}", fmt::join(missing, ", "));
  const std::string message = fmt::format("[{} {}] {} of {} did not arrive within {:.3f} s; {}", name_of(call.kind),
                                          call.what, who, ranks_, seconds(timeout_), kTimeoutRemedy);
  if (fail(message)) report_.say(message);
}

bool Rendezvous::fail(std::string_view message) {
  {
    std::lock_guard lock(mutex_);
    if (!failure_.empty()) return false;
    failure_ = message.empty() ? "no reason given" : message;
    complete_.store(kFailed, std::memory_order_seq_cst);
  }
  cpu::futex_wake_all(complete_);
  return true;
}

void Rendezvous::throw_if_failed() {
  if (!is_failed()) return;
  std::lock_guard lock(mutex_);
  throw CommError(failure_);
}

}  // namespace shoal::collectives::host
