#include "tools/cli/progress.h"

#include <fmt/core.h>
#include <sys/ioctl.h>
#include <unistd.h>

#include <algorithm>

#include "base/text.h"
#include "tools/cli/output.h"

namespace shoal::tools {
namespace {

constexpr std::chrono::milliseconds kInterval{50};
constexpr size_t kBar = 30;
constexpr size_t kUsualColumns = 80;
constexpr size_t kLeastBytes = 1'000'000;  ///< smallest size for which a rate is shown

/// Number of columns that a line may use. The last column stays free, because some terminals wrap a line that fills the
/// last column.
size_t terminal_columns() {
  winsize size{};
  const bool known = ioctl(STDERR_FILENO, TIOCGWINSZ, &size) == 0 && size.ws_col > 0;
  return (known ? size.ws_col : kUsualColumns) - 1;
}

/// Number of UTF-8 characters in the text.
size_t width_of(const std::string& text) {
  return static_cast<size_t>(std::count_if(text.begin(), text.end(), [](char c) { return (c & 0xc0) != 0x80; }));
}

}  // namespace

std::string rate_text(size_t bytes, std::chrono::duration<double> seconds) {
  if (bytes < kLeastBytes || seconds.count() <= 0) return "";
  return fmt::format(", {:.2f} GB/s", static_cast<double>(bytes) * 1e-9 / seconds.count());
}

ProgressBar::ProgressBar(std::string label) : label_(std::move(label)), visible_(isatty(STDERR_FILENO) == 1) {}

ProgressBar::~ProgressBar() {
  clear();
}

void ProgressBar::clear() {
  if (shown_ == 0) return;
  write_err(fmt::format("\r{}\r", std::string(std::min(shown_, terminal_columns()), ' ')));
  shown_ = 0;
}

void ProgressBar::update(size_t done, size_t total) {
  const std::chrono::duration<double> seconds = std::chrono::steady_clock::now() - begin_;
  update(done, total, fmt::format("{} of {}{}", format_bytes(done), format_bytes(total), rate_text(done, seconds)));
}

void ProgressBar::update(size_t done, size_t total, const std::string& detail) {
  if (!visible_) return;
  auto now = std::chrono::steady_clock::now();
  if (done < total && now - last_ < kInterval) return;
  last_ = now;
  const double part = total == 0 ? 1.0 : std::min(1.0, static_cast<double>(done) / static_cast<double>(total));
  const auto filled = static_cast<size_t>(part * kBar);
  std::string text = fmt::format("{}  [{}{}] {:3.0f}%  {}", label_, std::string(filled, '#'),
                                 std::string(kBar - filled, '.'), part * 100.0, detail);
  const size_t columns = terminal_columns();
  while (width_of(text) > columns) text.pop_back();
  const size_t width = width_of(text), before = std::min(shown_, columns);
  write_err(fmt::format("\r{}{}", text, std::string(before - std::min(before, width), ' ')));
  shown_ = width;
}

}  // namespace shoal::tools
