// For programs that must end when a device never comes back: a collective that fails frees the ranks that wait for it,
// but a thread or a GPU that is stuck cannot be stopped, and a thread that synchronizes the backend of the missing rank
// waits for it. Here and not beside the collectives, because plug-ins have those of their own, and a program has one
// callback.
#pragma once

#include <atomic>
#include <functional>
#include <string_view>

namespace shoal {

/// Called with the message of the CommError when ranks have not come to a collective in time, on a thread of a rank
/// that waited, or have not ended in time after the others, on the thread that synchronizes them. Must not throw or
/// wait. One for the process; empty: none.
using TimeoutCallback = std::function<void(std::string_view message)>;
/// Not while collectives run.
void set_timeout_callback(TimeoutCallback callback);
/// Time-outs after which some rank may not have ended yet.
int open_timeouts();

/// A time-out, as reported by what waits for ranks.
class TimeoutReport {
 public:
  TimeoutReport() = default;
  /// All ranks have ended.
  ~TimeoutReport();
  TimeoutReport(const TimeoutReport&) = delete;
  TimeoutReport& operator=(const TimeoutReport&) = delete;
  /// Calls the callback, the first time. Any thread.
  void say(std::string_view message);

 private:
  std::atomic<bool> said_{false};
};

/// The end of such a message: what users can do.
inline constexpr std::string_view kTimeoutRemedy =
    "look for what keeps its device busy or stopped it, or raise the time-out (SHOAL_COMM_TIMEOUT, in seconds)";

}  // namespace shoal
