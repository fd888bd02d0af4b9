// Another program, started to answer one question: it reads its standard input and writes its answer to standard
// output. No shell is involved. It is killed with the processes that it has started when it takes too long or the user
// interrupts this program; the terminal's Ctrl-C does not reach it.
#pragma once

#include <chrono>
#include <string>
#include <string_view>
#include <vector>

namespace shoal::tools {

enum class ChildEnd : uint8_t { kExited, kKilled, kTookTooLong };

struct ChildAnswer {
  ChildEnd end = ChildEnd::kExited;
  int code = 0;  ///< exit code of kExited, signal of kKilled
  std::string out;
};

/// Runs a program, which is searched for in PATH, with `input` as its standard input; waits for its end. What it writes
/// to standard error is lost. Throws DeviceError if it cannot be started, and Interrupted after catch_interrupts().
ChildAnswer ask_child(const std::vector<std::string>& arguments, std::string_view input,
                      std::chrono::milliseconds longest);

}  // namespace shoal::tools
