// The program `shoal`: its commands and exit codes. Every failure is one line on stderr, "shoal: error: what; remedy".
#pragma once

#include <string>
#include <string_view>
#include <vector>

namespace shoal::tools {

inline constexpr int kSuccess = 0;
inline constexpr int kFailed = 1;
inline constexpr int kUsage = 2;          ///< the command line is wrong
inline constexpr int kInterrupted = 130;  ///< ended by Ctrl-C, as shells report it

/// Runs a command line without the program's name and returns the exit code. Usage errors are reported here, all
/// others thrown.
int run_program(std::vector<std::string> args);

/// Prints the message as one line and returns `code`.
int report(std::string_view message, int code);

}  // namespace shoal::tools
