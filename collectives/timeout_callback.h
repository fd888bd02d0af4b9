// For programs that must end when a rank never comes back: a collective that fails frees the ranks that wait for it,
// but a thread or a GPU that is stuck cannot be stopped, and whoever synchronizes the backend of the missing rank waits
// for it.
#pragma once

#include <atomic>
#include <functional>
#include <string_view>

namespace shoal::collectives {

/// Called with the message of the CommError when ranks have not come to a collective in time, on a thread of a rank
/// that waited, or have not ended in time after the others, on the thread that synchronizes them; and with "" when all
/// ranks have been synchronized. Must not throw or wait. One for the process; empty: none.
using TimeoutCallback = std::function<void(std::string_view message)>;
/// Not while collectives run.
void set_timeout_callback(TimeoutCallback callback);

/// What a communicator, or whoever waits for ranks, tells the callback.
class TimeoutReport {
 public:
  TimeoutReport() = default;
  /// All ranks have been synchronized.
  ~TimeoutReport();
  TimeoutReport(const TimeoutReport&) = delete;
  TimeoutReport& operator=(const TimeoutReport&) = delete;
  /// The first message; of others the callback hears nothing. Any thread.
  void say(std::string_view message);

 private:
  std::atomic<bool> said_{false};
};

/// The end of such a message: what users can do.
inline constexpr std::string_view kTimeoutRemedy =
    "look for what keeps its device busy or stopped it, or raise the time-out (SHOAL_COMM_TIMEOUT, in seconds)";

}  // namespace shoal::collectives
