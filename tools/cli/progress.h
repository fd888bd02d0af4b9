// A one-line progress bar on a terminal: "loading [#####.....]  52%  1.1 GiB of 2.1 GiB, 1.62 GB/s". The bar is cut at
// the terminal's width. The bar is redrawn and removed only with carriage returns and blanks, because every terminal
// supports them. The bar is hidden if stderr is not a terminal. Only one thread at a time may use the bar. The
// destructor removes the line.
#pragma once

#include <chrono>
#include <cstddef>
#include <string>

namespace shoal::tools {

/// ", 3.21 GB/s"; empty for less than a megabyte.
std::string rate_text(size_t bytes, std::chrono::duration<double> seconds);

class ProgressBar {
 public:
  explicit ProgressBar(std::string label);
  ~ProgressBar();
  ProgressBar(const ProgressBar&) = delete;
  ProgressBar& operator=(const ProgressBar&) = delete;

  /// Redraws the bar at most every 50 ms, and whenever `done` reaches `total`. Shows bytes, and the mean number of
  /// bytes per second.
  void update(size_t done, size_t total);
  /// Redraws with the text `detail` instead of bytes: "probing  [###...]  20%  CPU0 q4_0".
  void update(size_t done, size_t total, const std::string& detail);
  /// Removes the line, so that other text can be printed.
  void clear();

 private:
  std::string label_;
  bool visible_;
  size_t shown_ = 0;  ///< number of columns in the current line
  std::chrono::steady_clock::time_point last_{}, begin_ = std::chrono::steady_clock::now();
};

}  // namespace shoal::tools
