// What the program writes. Results go to stdout and must arrive: every write is checked. Messages go to stderr and
// never stop the program. One thread at a time.
#pragma once

#include <chrono>
#include <cstddef>
#include <nlohmann/json.hpp>
#include <string>
#include <string_view>
#include <vector>

#include "base/error.h"
#include "base/printable.h"

namespace shoal::tools {

/// Results cannot be written; nothing more is worth computing.
class OutputError : public DeviceError {
 public:
  using DeviceError::DeviceError;
};

/// The reader of stdout has gone, as `| head` does when it has enough: no reason for a message.
class OutputClosed : public OutputError {
 public:
  OutputClosed() : OutputError("stdout has no reader") {}
};

/// From now on this process writes no results and no messages, but for what write_line() is given.
void be_quiet();
/// Writes to stdout at once. Throws OutputError ("cannot write to stdout: No space left on device; ...").
void write_out(std::string_view text);
/// Writes to stderr if that is possible.
void write_err(std::string_view text) noexcept;
/// The same, quiet or not.
void write_line(std::string_view text) noexcept;
/// Throws OutputError when anything written to stdout did not get there.
void finish_out();

/// Indented, with a line end. Bytes that are no valid UTF-8 become U+FFFD, what is no number becomes null.
void print_json(const nlohmann::json& json);

/// Columns as wide as their widest cell, two spaces apart; numbers to the right. The first row is the heading.
std::string format_table(const std::vector<std::vector<std::string>>& rows);

/// ", 3.21 GB/s"; empty for less than a megabyte.
std::string rate_text(size_t bytes, std::chrono::duration<double> seconds);

/// A line on a terminal: "loading  [#####.....]  52%  1.1 GiB of 2.1 GiB, 1.62 GB/s". Cut where the terminal ends, and
/// drawn with carriage returns and blanks alone, which the plainest terminal understands. Shows nothing if stderr is
/// not a terminal. The line is removed when the bar is destroyed.
class ProgressBar {
 public:
  explicit ProgressBar(std::string label);
  ~ProgressBar();
  ProgressBar(const ProgressBar&) = delete;
  ProgressBar& operator=(const ProgressBar&) = delete;

  /// Redraws at most every 50 ms, and at the end. Bytes: with how many a second since the bar was made.
  void update(size_t done, size_t total);
  /// The same for what is no number of bytes: "probing  [###...]  20%  CPU0 q4_0".
  void update(size_t done, size_t total, const std::string& detail);
  /// Removes the line, to print something else.
  void clear();

 private:
  std::string label_;
  bool visible_;
  size_t shown_ = 0;  ///< columns of the line that is there
  std::chrono::steady_clock::time_point last_{}, begin_ = std::chrono::steady_clock::now();
};

}  // namespace shoal::tools
