// A progress bar of one line on a terminal: "loading  [#####.....]  52%  1.1 GiB of 2.1 GiB". Shows nothing where
// stderr is no terminal. One thread at a time; the line is removed when the bar is destroyed.
#pragma once

#include <chrono>
#include <cstddef>
#include <cstdint>
#include <string>

namespace shoal::tools {

class ProgressBar {
 public:
  /// What is counted: bytes, or things ("12 of 48").
  enum class Unit : uint8_t { kBytes, kCount };

  explicit ProgressBar(std::string label, Unit unit = Unit::kBytes);
  ~ProgressBar();
  ProgressBar(const ProgressBar&) = delete;
  ProgressBar& operator=(const ProgressBar&) = delete;

  /// Redraws at most every 50 ms, and at the end.
  void update(size_t done, size_t total);
  /// Removes the line, to print something else.
  void clear();

  /// The line for a state; `width` columns of bar.
  static std::string line(const std::string& label, size_t done, size_t total, int width = 30,
                          Unit unit = Unit::kBytes);

 private:
  std::string label_;
  Unit unit_;
  bool visible_;
  std::chrono::steady_clock::time_point last_{};
};

}  // namespace shoal::tools
