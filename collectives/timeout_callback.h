// For programs that must end when a rank never comes back: a collective that fails frees the ranks that wait for it,
// but a thread that is stuck cannot be stopped, and whoever synchronizes the backend of the missing rank waits for it.
#pragma once

#include <functional>
#include <string_view>

namespace shoal::collectives {

/// Called with the message of the CommError when ranks of a host communicator have not come in time, on a thread of a
/// rank that waited, or have not ended in time after the others, on the thread that synchronizes them; and with "" when
/// all ranks have been synchronized. Must not throw or wait. One for the process; empty: none.
using TimeoutCallback = std::function<void(std::string_view message)>;
/// Not while collectives run.
void set_timeout_callback(TimeoutCallback callback);
/// The one that is set.
const TimeoutCallback& timeout_callback();

/// The end of such a message: what users can do.
inline constexpr std::string_view kTimeoutRemedy =
    "look for what keeps its device busy or stopped it, or raise the time-out (SHOAL_COMM_TIMEOUT, in seconds)";

}  // namespace shoal::collectives
