#include "tools/cli/output.h"

#include <fmt/core.h>

#include <algorithm>
#include <cctype>
#include <cerrno>
#include <cstdio>
#include <cstring>
#include <utility>

namespace shoal::tools {
namespace {

bool is_quiet = false;
std::function<void(std::string_view)> message_receiver;

[[noreturn]] void fail_output(int error) {
  if (error == EPIPE) throw OutputClosed();
  fail<OutputError>("cannot write to stdout: {}; {}", std::strerror(error),
                    error == EFBIG ? "raise `ulimit -f`" : "check the disk or pipe of stdout");
}

}  // namespace

void be_quiet() {
  is_quiet = true;
}

void redirect_messages(std::function<void(std::string_view)> receiver) {
  message_receiver = std::move(receiver);
}

void write_out(std::string_view text) {
  if (is_quiet) return;
  errno = 0;
  bool written = std::fwrite(text.data(), 1, text.size(), stdout) == text.size();
  if (!written || std::fflush(stdout) != 0) fail_output(errno);
}

void write_err(std::string_view text) noexcept {
  if (is_quiet) return;
  message_receiver ? message_receiver(text) : write_line(text);
}

void write_line(std::string_view text) noexcept {
  std::fwrite(text.data(), 1, text.size(), stderr);
  std::fflush(stderr);
}

void finish_out() {
  errno = 0;
  if (std::fflush(stdout) != 0 || std::ferror(stdout) != 0) fail_output(errno != 0 ? errno : EIO);
}

void print_json(const nlohmann::json& json) {
  write_out(json.dump(2, ' ', false, nlohmann::json::error_handler_t::replace) + "\n");
}

std::string format_table(const std::vector<std::vector<std::string>>& rows) {
  std::vector<size_t> widths;
  for (const auto& row : rows) {
    widths.resize(std::max(widths.size(), row.size()));
    for (size_t i = 0; i < row.size(); ++i) widths[i] = std::max(widths[i], row[i].size());
  }
  std::string text;
  for (const auto& row : rows) {
    std::string line;
    for (size_t i = 0; i < row.size(); ++i) {
      bool is_number = !rows.back()[i].empty() && std::isdigit(static_cast<unsigned char>(rows.back()[i][0]));
      line += is_number ? fmt::format("{:>{}}  ", row[i], widths[i]) : fmt::format("{:<{}}  ", row[i], widths[i]);
    }
    line.erase(line.find_last_not_of(' ') + 1);
    text += line + "\n";
  }
  return text;
}

}  // namespace shoal::tools
