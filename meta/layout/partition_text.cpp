// Partitions as text: "6:{0} 2:{1}", "1:{0,1} 1:{2,3}", "(2:{0} 2:{1}) x 8", "empty".
#include <fmt/ranges.h>

#include <charconv>

#include "base/error.h"
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

/// Reads the grammar of Partition::to_string from left to right.
class Reader {
 public:
  explicit Reader(std::string_view text) : all_(text), rest_(text) {}

  std::vector<Run> runs() {
    while (!take("")) {
      if (take("(")) {
        repeat();
      } else {
        runs_.push_back(run());
      }
    }
    return std::move(runs_);
  }

 private:
  static constexpr size_t kMostRuns = size_t{1} << 20;  ///< limits the memory that a short text can need

  /// Skips blanks. Then skips `mark`, or returns false if `mark` does not follow. The mark "" is the end of the text.
  bool take(std::string_view mark) {
    rest_.remove_prefix(std::min(rest_.find_first_not_of(' '), rest_.size()));
    if (mark.empty() || !rest_.starts_with(mark)) return mark.empty() && rest_.empty();
    rest_.remove_prefix(mark.size());
    return true;
  }

  void expect(bool is_valid) const {
    require<InvalidArgument>(is_valid,
                             "'{}' is not a partition (error at '{}'); write runs with their owners, such as "
                             "'3:{{0}} 2:{{0,1}}' or '(2:{{0}} 2:{{1}}) x 8'",
                             all_, rest_);
  }

  template <class Number>
  Number number() {
    Number value = 0;
    take(" ");
    const auto [end, error] = std::from_chars(rest_.data(), rest_.data() + rest_.size(), value);
    expect(error == std::errc() && value >= 0);
    rest_.remove_prefix(static_cast<size_t>(end - rest_.data()));
    return value;
  }

  Run run() {
    Run one;
    one.length = number<int64_t>();
    expect(take(":") && take("{"));
    do one.owners.push_back(number<int>());
    while (take(","));
    expect(take("}"));
    return one;
  }

  void repeat() {
    std::vector<Run> part;
    do part.push_back(run());
    while (!take(")"));
    expect(take("x"));
    const auto times = number<size_t>();
    require<InvalidArgument>(times <= kMostRuns / part.size() && runs_.size() + times * part.size() <= kMostRuns,
                             "'{}' has more than {} runs; use fewer repetitions", all_, kMostRuns);
    for (size_t i = 0; i < times; ++i) runs_.insert(runs_.end(), part.begin(), part.end());
  }

  std::vector<Run> runs_;
  std::string_view all_, rest_;
};

}  // namespace

Partition Partition::parse(int devices, std::string_view text) {
  return Partition(devices, text == "empty" ? std::vector<Run>() : Reader(text).runs());
}

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
