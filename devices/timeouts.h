// Lets a program exit although a device is stuck. If a collective fails, the ranks that wait in it continue. But a
// stuck thread or GPU cannot be stopped. Synchronizing the backend of a stuck rank would wait for this rank forever. To
// avoid this wait, a callback can end the program. These functions are in devices/ because each plug-in has its own
// copy of collectives/, but a program needs exactly one callback.
#pragma once

#include <atomic>
#include <functional>
#include <string_view>

namespace shoal {

/// Receives the message of the CommError in two cases:
/// - Ranks did not reach a collective in time. The thread of a waiting rank calls the callback.
/// - Ranks did not leave a collective in time after other ranks had left the collective. The thread that synchronizes
///   the late ranks calls the callback.
/// The callback must not throw or wait. A process has at most one callback. An empty function means no callback.
using TimeoutCallback = std::function<void(std::string_view message)>;
/// Callers must not call this function while collectives run.
void set_timeout_callback(TimeoutCallback callback);
/// Number of time-outs whose reports (TimeoutReport) still exist. Ranks may still be in the collectives of these
/// reports.
int open_timeouts();

/// Reports one time-out. The object that waits for ranks owns the report.
class TimeoutReport {
 public:
  TimeoutReport() = default;
  /// The owner destroys the report after all ranks have left the collective.
  ~TimeoutReport();
  TimeoutReport(const TimeoutReport&) = delete;
  TimeoutReport& operator=(const TimeoutReport&) = delete;
  /// The first call runs the callback; later calls do nothing. Any thread may call this function.
  void say(std::string_view message);

 private:
  std::atomic<bool> said_{false};
};

/// Remedy at the end of each time-out message.
inline constexpr std::string_view kTimeoutRemedy =
    "check whether the late rank's device is busy or stopped, or raise the time-out (SHOAL_COMM_TIMEOUT, in seconds)";

}  // namespace shoal
