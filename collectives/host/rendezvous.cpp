#include "collectives/host/rendezvous.h"

#include <algorithm>
#include <thread>
#include <utility>
#include <vector>

#include <fmt/ranges.h>

#include "base/error.h"
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

struct Rendezvous::Own {
  explicit Own(int ranks)
      : seats(std::make_unique<Seat[]>(static_cast<size_t>(ranks))), size(static_cast<size_t>(ranks)) {}
  RendezvousState state;
  const std::unique_ptr<Seat[]> seats;
  const size_t size;
};

Rendezvous::Rendezvous(int ranks, const Options& options) : Rendezvous(std::make_unique<Own>(ranks), options) {}

Rendezvous::Rendezvous(std::unique_ptr<Own> own, const Options& options)
    : own_(std::move(own)),
      state_(own_->state),
      seats_(own_->seats.get(), own_->size),
      parking_(cpu::Parking::kOwn),
      timeout_(options.timeout),
      spin_(spin_time(size(), options)),
      missing_([this](std::span<const int> missing, const Call& call, std::chrono::nanoseconds waited) {
        std::vector<std::string> names;
        for (const int rank : missing) names.push_back(std::to_string(rank));
        if (!names.empty()) names.front() = "rank " + names.front();
        const std::string message = missing_message(call, names, size(), waited);
        if (fail(message)) report_.say(message);
      }) {}

Rendezvous::Rendezvous(RendezvousState& state, std::span<Seat> seats, const Options& options, Missing missing)
    : state_(state),
      seats_(seats),
      parking_(cpu::Parking::kShared),
      timeout_(options.timeout),
      spin_(options.spin),
      missing_(std::move(missing)) {}

Rendezvous::~Rendezvous() = default;

void Rendezvous::meet(int rank, const Call& call, std::chrono::nanoseconds timeout) {
  std::atomic<uint32_t>& own = seats_[static_cast<size_t>(rank)].step;
  const uint32_t before = own.load(std::memory_order_relaxed);
  const uint32_t step = next(before);
  throw_if_failed();
  own.store(step, std::memory_order_relaxed);
  // acq_rel: each arrival makes the writes of all earlier arrivals visible to the next arrival. The last arrival
  // therefore publishes the writes of all ranks.
  if (state_.arrivals.fetch_add(1, std::memory_order_acq_rel) + 1 == size()) {
    state_.arrivals.store(0, std::memory_order_relaxed);
    uint32_t expected = before;
    // A compare-exchange does not overwrite a concurrent failure; a store would. The memory order seq_cst pairs with
    // the seq_cst operations in park().
    state_.complete.compare_exchange_strong(expected, step, std::memory_order_seq_cst);
    if (state_.parked.load(std::memory_order_seq_cst) > 0) cpu::futex_wake_all(state_.complete, parking_);
  } else if (!spin(step)) {
    park(step, timeout);
  }
  const uint32_t complete = state_.complete.load(std::memory_order_acquire);
  if (complete != step && complete != kFailed) fail_for_the_missing(step, call, timeout);
  throw_if_failed();
}

bool Rendezvous::spin(uint32_t step) const {
  const auto done = [&] {
    const uint32_t complete = state_.complete.load(std::memory_order_acquire);
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

// Sleeps in time slices. Each slice counts for at most its nominal length. If the process is stopped for an hour, this
// hour counts as one slice.
void Rendezvous::park(uint32_t step, std::chrono::nanoseconds timeout) {
  constexpr std::chrono::nanoseconds kSlice = std::chrono::seconds(1);
  // `parked` is incremented before `complete` is read again. Therefore either the last rank to arrive sees this waiter,
  // or this waiter sees the new step.
  state_.parked.fetch_add(1, std::memory_order_seq_cst);
  uint32_t complete = state_.complete.load(std::memory_order_seq_cst);
  std::chrono::nanoseconds left = timeout;
  while (complete != step && complete != kFailed && left.count() > 0) {
    const Clock::time_point before = Clock::now();
    const std::chrono::nanoseconds slice = std::min(kSlice, left);
    cpu::futex_wait(state_.complete, complete, slice, parking_);
    left -= std::min<std::chrono::nanoseconds>(Clock::now() - before, slice);
    complete = state_.complete.load(std::memory_order_seq_cst);
  }
  state_.parked.fetch_sub(1, std::memory_order_relaxed);
}

void Rendezvous::fail_for_the_missing(uint32_t step, const Call& call, std::chrono::nanoseconds timeout) {
  std::vector<int> missing;
  for (int rank = 0; rank < size(); ++rank) {
    if (seats_[static_cast<size_t>(rank)].step.load(std::memory_order_relaxed) != step) missing.push_back(rank);
  }
  missing_(missing, call, timeout);
}

bool Rendezvous::fail(std::string_view message) {
  if (state_.is_reporting.exchange(1, std::memory_order_acq_rel) == 0) {
    publish(message);
    return true;
  }
  // Another rank has failed first. It publishes its message soon if its process is still alive.
  constexpr int kLooks = 1000;
  for (int i = 0; i < kLooks && !is_failed(); ++i) std::this_thread::sleep_for(std::chrono::milliseconds(1));
  if (!is_failed()) publish(message);
  return false;
}

void Rendezvous::publish(std::string_view message) {
  const std::string_view text = message.empty() ? "no reason given" : message;
  std::copy_n(text.begin(), std::min(text.size(), state_.failure.size() - 1), state_.failure.begin());
  state_.complete.store(kFailed, std::memory_order_seq_cst);
  cpu::futex_wake_all(state_.complete, parking_);
}

void Rendezvous::throw_failure() const {
  throw CommError(state_.failure.data());
}

std::string missing_message(const Call& call, std::span<const std::string> names, int ranks,
                            std::chrono::nanoseconds waited) {
  // If `names` is empty, all ranks have arrived, but some arrived after the deadline. The step still fails.
  const std::string who = names.empty() ? "at least one rank" : fmt::format("{}", fmt::join(names, ", "));
  return fmt::format("[{} {}] {} of {} did not arrive within {:.3f} s; {}", name_of(call.kind), call.what, who, ranks,
                     seconds(waited), kTimeoutRemedy);
}

}  // namespace shoal::collectives::host
