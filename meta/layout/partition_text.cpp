// Partitions as text: "6:{0} 2:{1}", "1:{0,1} 1:{2,3}", "(2:{0} 2:{1}) x 8", "empty".
#include <fmt/ranges.h>

#include "meta/layout/partition.h"

namespace shoal::meta {
namespace {

std::string text_of(const Run& run) {
  return fmt::format("{}:{{{}}}", run.length, fmt::join(run.owners, ","));
}

/// Number of consecutive repetitions of the runs [at, at + period), starting at `at`.
size_t repetitions(std::span<const Run> runs, size_t at, size_t period) {
  size_t end = at + period;
  while (end < runs.size() && runs[end] == runs[end - period]) ++end;
  return (end - at) / period;
}

std::string join(std::span<const Run> runs) {
  std::string text;
  for (const Run& run : runs) text += (text.empty() ? "" : " ") + text_of(run);
  return text;
}

}  // namespace

std::string Partition::to_string() const {
  if (length_ == 0) return "empty";
  constexpr size_t kFold = 3;  // minimum number of repetitions; a fused matrix of two segments is easier to read
                               // without a factor
  const std::span<const Run> runs = this->runs();
  std::string text;
  for (size_t at = 0; at < runs.size();) {
    size_t period = 1, times = 1;
    for (size_t p = 2; p * kFold <= runs.size() - at && times == 1; ++p) {
      if (const size_t n = repetitions(runs, at, p); n >= kFold) period = p, times = n;
    }
    if (!text.empty()) text += ' ';
    const std::string part = join(runs.subspan(at, period));
    text += times == 1 ? part : fmt::format("({}) x {}", part, times);
    at += period * times;
  }
  return text;
}

}  // namespace shoal::meta
