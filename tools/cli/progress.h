// A progress bar of one line on a terminal: "loading  [#####.....]  52%  1.1 GiB of 2.1 GiB, 1.62 GB/s". Cut where the
// terminal ends, and drawn with carriage returns and blanks alone, which the plainest terminal understands. Shows
// nothing where stderr is no terminal. One thread at a time; the line is removed when the bar is destroyed.
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
