// Runs a program that answers one question. The program reads its standard input and writes its answer to standard
// output. No shell is involved. If the program takes too long, or the user interrupts shoal, the program and all other
// processes of its process group are killed. Ctrl-C at the terminal does not reach the program.
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
/// standard error of the program. Throws DeviceError if the program cannot be started. Throws Interrupted if a signal
/// arrives after a call of catch_interrupts().
ChildAnswer ask_child(const std::vector<std::string>& arguments, std::string_view input,
                      std::chrono::milliseconds longest);

}  // namespace shoal::tools
