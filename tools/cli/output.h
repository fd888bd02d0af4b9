// What the program writes. Results go to stdout and must arrive: every write is checked. Messages go to stderr and
// never stop the program. One thread at a time.
#pragma once

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

}  // namespace shoal::tools
