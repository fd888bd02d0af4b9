// Output of the program. Results go to stdout, and every write is checked. Messages go to stderr, and a message that
// cannot be written never stops the program. Only one thread at a time may use these functions.
#pragma once

#include <functional>
#include <nlohmann/json.hpp>
#include <string>
#include <string_view>
#include <vector>

#include "base/error.h"
#include "base/printable.h"

namespace shoal::tools {

/// Thrown if results cannot be written. Further work would be useless.
class OutputError : public DeviceError {
 public:
  using DeviceError::DeviceError;
};

/// Thrown if the reader closed stdout, as `| head` does after its last line. The program then exits without a message.
class OutputClosed : public OutputError {
 public:
  OutputClosed() : OutputError("stdout has no reader") {}
};

/// Suppresses all further results and messages of this process, except the lines of write_line().
void be_quiet();
/// Sends the text of write_err() to `receiver` instead of stderr, for programs other than shoal. `receiver` must not
/// throw.
void redirect_messages(std::function<void(std::string_view)> receiver);
/// Writes to stdout and flushes it. Throws OutputError ("cannot write to stdout: No space left on device; ...").
void write_out(std::string_view text);
/// Writes to stderr. Ignores failures.
void write_err(std::string_view text) noexcept;
/// Writes to stderr, even after be_quiet().
void write_line(std::string_view text) noexcept;
/// Throws OutputError if any output to stdout was lost.
void finish_out();

/// Prints indented JSON and a newline. Invalid UTF-8 becomes U+FFFD; NaN and infinity become null.
void print_json(const nlohmann::json& json);

/// Formats a table. Each column is as wide as its widest cell, columns are two spaces apart, and numbers are
/// right-aligned. The first row is the heading.
std::string format_table(const std::vector<std::vector<std::string>>& rows);

}  // namespace shoal::tools
