// The program `shoal`: its commands and exit codes. Every failure is one line on stderr, "shoal: error: what; remedy".
#pragma once

#include <functional>
#include <string>
#include <string_view>
#include <vector>

namespace shoal::tools {

inline constexpr int kSuccess = 0;
inline constexpr int kFailed = 1;
inline constexpr int kUsage = 2;           ///< the command line makes no sense, whatever the model and the machine
inline constexpr int kOutputClosed = 141;  ///< the reader of stdout has gone: as shells report SIGPIPE

/// Runs a command line without the program's name and returns the exit code: 128 + n when signal n ended it. All
/// failures are reported.
int run_program(const std::vector<std::string>& args) noexcept;

/// Prints the message as one line without control characters and returns `code`.
int report(std::string_view message, int code) noexcept;
/// The same for the exception that is being handled, with what to do where its text does not say so. To be called in
/// a catch block.
int report_current(int code) noexcept;
/// What report_current() would print.
std::string describe_current();
/// Runs `body`, then `finish` with the message of its failure ("" if there is none), which prints the results so far.
/// Returns the exit code; throws OutputError without finishing, and Interrupted.
int finish_after(const std::function<void()>& body, const std::function<void(const std::string& error)>& finish);
/// A line that does not change what the program does.
void warn(std::string_view message) noexcept;

}  // namespace shoal::tools
