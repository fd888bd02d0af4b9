// Lets a program exit although a device is stuck. If a collective fails, the ranks that wait in it continue. But a
// stuck thread or GPU cannot be stopped, and synchronizing the backend of the missing rank waits for it. This file is
// in devices/ because each plug-in has its own copy of collectives/, and a program has one callback.
#pragma once

#include <atomic>
#include <functional>
#include <string_view>

namespace shoal {

/// Called with the message of the CommError in two cases:
/// - Ranks did not reach a collective in time. A waiting rank's thread makes the call.
/// - Ranks did not leave a collective in time after other ranks did. The thread that synchronizes them makes the call.
/// The callback must not throw or wait. A process has one callback; empty means none.
using TimeoutCallback = std::function<void(std::string_view message)>;
/// Must not be called while collectives run.
void set_timeout_callback(TimeoutCallback callback);
/// Number of reported time-outs after which some rank may still be in its collective.
int open_timeouts();

/// One time-out, reported by the object that waits for ranks.
class TimeoutReport {
 public:
  TimeoutReport() = default;
  /// The owner destroys the report after all ranks have left the collective.
  ~TimeoutReport();
  TimeoutReport(const TimeoutReport&) = delete;
  TimeoutReport& operator=(const TimeoutReport&) = delete;
  /// The first call runs the callback; later calls do nothing. Callable from any thread.
  void say(std::string_view message);

 private:
  std::atomic<bool> said_{false};
};

/// Remedy at the end of the message of a time-out.
inline constexpr std::string_view kTimeoutRemedy =
    "check what keeps its device busy or has stopped it, or raise the time-out (SHOAL_COMM_TIMEOUT, in seconds)";

}  // namespace shoal
