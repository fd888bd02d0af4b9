#include "devices/cpu/slowdown.h"

#include <algorithm>
#include <thread>

#include "devices/cpu/waiting.h"

namespace shoal::cpu {
namespace {

using Clock = std::chrono::steady_clock;
using std::chrono::microseconds;

/// How late a sleeping thread may come back, by what systems promise (50 us) and what they need to wake it.
constexpr microseconds kLate{150};
/// Sleeping for less is not worth it.
constexpr microseconds kWorthSleeping{100};
/// How long a stop may go unnoticed.
constexpr microseconds kDeaf{4000};

}  // namespace

bool wait_in_proportion(Clock::time_point begin, Clock::time_point end, double factor, const AbortCallback& stop) {
  const auto took = std::chrono::duration_cast<std::chrono::nanoseconds>(end - begin);
  const auto until = begin + std::chrono::nanoseconds(static_cast<int64_t>(factor * static_cast<double>(took.count())));
  for (auto now = Clock::now(); now < until; now = Clock::now()) {
    const auto wake = until - kLate;
    if (wake - now > kWorthSleeping) {
      if (stop && stop()) return true;
      std::this_thread::sleep_until(stop ? std::min(wake, now + kDeaf) : wake);
    } else if (!may_spin(Waiter::kWorker)) {
      std::this_thread::yield();
    }
  }
  return false;
}

}  // namespace shoal::cpu
