// Runs a program that answers one question on its standard output. No shell is involved.
#pragma once

#include <chrono>
#include <string>
#include <string_view>
#include <vector>

namespace shoal::tools {

enum class ChildEnd : uint8_t { kExited, kKilled, kTookTooLong };

struct ChildAnswer {
  ChildEnd end = ChildEnd::kExited;
  int code = 0;  ///< exit code for kExited, signal number for kKilled
  std::string out;
};

/// Runs a program from PATH with `input` as its standard input, and waits until the program exits. Discards the
/// standard error of the program. If the program takes longer than `longest`, or the user interrupts shoal, kills the
/// program and all other processes of its process group. Ctrl-C at the terminal does not reach the program. Throws
/// DeviceError if the program cannot be started. Throws Interrupted if a signal arrives after a call of
/// catch_interrupts().
ChildAnswer ask_child(const std::vector<std::string>& arguments, std::string_view input,
                      std::chrono::milliseconds longest);

/// Runs a program that may take long, such as a download. The program has the standard error and the process group of
/// shoal, so it can show its progress, and Ctrl-C at the terminal reaches it. Its standard input is empty. After SIGINT
/// or SIGTERM, waits until the program exits, and throws Interrupted. Sends SIGINT to the program if it still runs
/// after a second. Throws DeviceError if the program cannot be started.
ChildAnswer ask_long(const std::vector<std::string>& arguments);

}  // namespace shoal::tools
