#include "tools/progress.h"

#include <fmt/core.h>
#include <unistd.h>

#include <algorithm>

#include "devices/params.h"
#include "tools/output.h"

namespace shoal::tools {
namespace {

constexpr std::chrono::milliseconds kInterval{50};
constexpr const char* kEraseLine = "\r\x1b[K";

}  // namespace

ProgressBar::ProgressBar(std::string label) : label_(std::move(label)), visible_(isatty(STDERR_FILENO) == 1) {}

ProgressBar::~ProgressBar() {
  clear();
}

void ProgressBar::clear() {
  if (visible_) write_err(kEraseLine);
}

std::string ProgressBar::line(const std::string& label, size_t done, size_t total, int width) {
  return line(label, done, total, fmt::format("{} of {}", format_bytes(done), format_bytes(total)), width);
}

std::string ProgressBar::line(const std::string& label, size_t done, size_t total, const std::string& detail,
                              int width) {
  double part = total == 0 ? 1.0 : std::min(1.0, static_cast<double>(done) / static_cast<double>(total));
  int filled = static_cast<int>(part * width);
  return fmt::format("{}  [{}{}] {:3.0f}%  {}", label, std::string(filled, '#'), std::string(width - filled, '.'),
                     part * 100.0, detail);
}

void ProgressBar::update(size_t done, size_t total) {
  update(done, total, fmt::format("{} of {}", format_bytes(done), format_bytes(total)));
}

void ProgressBar::update(size_t done, size_t total, const std::string& detail) {
  if (!visible_) return;
  auto now = std::chrono::steady_clock::now();
  if (done < total && now - last_ < kInterval) return;
  last_ = now;
  write_err(kEraseLine + line(label_, done, total, detail));
}

}  // namespace shoal::tools
