// The program `shoal`: its commands and exit codes. Every failure is one line on stderr, "shoal: error: CAUSE; REMEDY".
#pragma once

#include <functional>
#include <string>
#include <string_view>
#include <vector>

namespace shoal::tools {

inline constexpr int kSuccess = 0;
inline constexpr int kFailed = 1;
inline constexpr int kUsage = 2;           ///< the command line is invalid for every model and machine
inline constexpr int kOutputClosed = 141;  ///< the reader closed stdout; shells report this code for SIGPIPE

/// Runs a command line, without the program's name, and reports all failures. Returns the exit code: 128 + n if signal
/// n ended the run.
int run_program(const std::vector<std::string>& args) noexcept;

/// Prints the message as one line without control characters and returns `code`.
int report(std::string_view message, int code) noexcept;
/// Reports the exception that is being handled. Adds a remedy if the memory is exhausted or a thread cannot be started.
/// Call this function in a catch block.
int report_current(int code) noexcept;
/// The text that report_current() would print.
std::string describe_current();
/// Runs `body`, then `finish`, which prints the results so far. `finish` receives the message of a failure, or "".
/// Returns the exit code. An OutputError propagates without a call of `finish`. An Interrupted propagates after the
/// call of `finish`.
int finish_after(const std::function<void()>& body, const std::function<void(const std::string& error)>& finish);
/// Prints a warning.
void warn(std::string_view message) noexcept;

}  // namespace shoal::tools
