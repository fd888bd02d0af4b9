// A progress bar of one line on a terminal: "loading  [#####.....]  52%  1.1 GiB of 2.1 GiB". Shows nothing where
// stderr is no terminal. One thread at a time; the line is removed when the bar is destroyed.
#pragma once

#include <chrono>
#include <cstddef>
#include <string>

namespace shoal::tools {

class ProgressBar {
 public:
  explicit ProgressBar(std::string label);
  ~ProgressBar();
  ProgressBar(const ProgressBar&) = delete;
  ProgressBar& operator=(const ProgressBar&) = delete;

  /// Redraws at most every 50 ms, and at the end.
  void update(size_t done, size_t total);
  /// The same for what is no number of bytes: "probing  [###...]  20%  CPU0 q4_0".
  void update(size_t done, size_t total, const std::string& detail);
  /// Removes the line, to print something else.
  void clear();

  /// The line for a state; `width` columns of bar.
  static std::string line(const std::string& label, size_t done, size_t total, int width = 30);
  static std::string line(const std::string& label, size_t done, size_t total, const std::string& detail,
                          int width = 30);

 private:
  std::string label_;
  bool visible_;
  std::chrono::steady_clock::time_point last_{};
};

}  // namespace shoal::tools
