// Another program, started to answer one question: it reads its standard input and writes its answer to standard
// output. No shell is involved. It is ended when it takes too long or says too much; Ctrl-C is not for it.
#pragma once

#include <chrono>
#include <cstddef>
#include <string>
#include <string_view>
#include <vector>

namespace shoal::tools {

struct ChildLimits {
  std::chrono::milliseconds time{10'000};
  size_t output = size_t{64} << 20;  ///< bytes
};

enum class ChildEnd : uint8_t { kExited, kKilled, kTookTooLong, kSaidTooMuch };

struct ChildAnswer {
  ChildEnd end = ChildEnd::kExited;
  int code = 0;  ///< exit code of kExited, signal of kKilled
  std::string out;
};

/// Runs a program, which is searched for in PATH, with `input` as its standard input; waits for its end. What it writes
/// to standard error is lost. Throws DeviceError where it cannot be started.
ChildAnswer ask_child(const std::vector<std::string>& arguments, std::string_view input, const ChildLimits& limits);

}  // namespace shoal::tools
