#include "devices/cpu/slowdown.h"

#include <algorithm>
#include <thread>

#include "devices/cpu/waiting.h"

namespace shoal::cpu {
namespace {

using Clock = std::chrono::steady_clock;
using std::chrono::microseconds;

/// Maximum delay with which a sleeping thread wakes. The delay consists of the timer slack (50 us) and the time of the
/// wake-up itself.
constexpr microseconds kLate{150};
/// Minimum duration of a sleep.
constexpr microseconds kWorthSleeping{100};
/// Longest time between two calls of `stop`.
constexpr microseconds kStopInterval{4000};

}  // namespace

bool wait_in_proportion(Clock::time_point begin, Clock::time_point end, double factor, const AbortCallback& stop) {
  const auto took = std::chrono::duration_cast<std::chrono::nanoseconds>(end - begin);
  const auto until = begin + std::chrono::nanoseconds(static_cast<int64_t>(factor * static_cast<double>(took.count())));
  for (auto now = Clock::now(); now < until; now = Clock::now()) {
    const auto wake = until - kLate;
    if (wake - now > kWorthSleeping) {
      if (stop && stop()) return true;
      std::this_thread::sleep_until(stop ? std::min(wake, now + kStopInterval) : wake);
    } else if (!may_spin(Waiter::kWorker)) {
      std::this_thread::yield();
    }
  }
  return false;
}

}  // namespace shoal::cpu
