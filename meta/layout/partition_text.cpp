// Partitions as text, both ways: "6:{0} 2:{1}", "1:{0,1} 1:{2,3}", "(2:{0} 2:{1}) x 8", "empty".
#include <fmt/format.h>

#include <charconv>

#include "base/error.h"
#include "meta/layout/partition.h"

namespace shoal::meta {
namespace {

std::string text_of(const Run& run) {
  return fmt::format("{}:{{{}}}", run.length, fmt::join(run.owners, ","));
}

/// How often runs [at, at + period) stand one after the other from `at` on.
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

/// Reads one decimal number off the front of the text.
template <class Number>
Number take_number(std::string_view& rest, std::string_view whole) {
  Number value = 0;
  const auto [end, error] = std::from_chars(rest.data(), rest.data() + rest.size(), value);
  require<InvalidArgument>(error == std::errc(), "partition '{}': expected a number at '{}'", whole, rest);
  rest.remove_prefix(end - rest.data());
  return value;
}

void take(std::string_view& rest, std::string_view token, std::string_view whole) {
  require<InvalidArgument>(rest.starts_with(token), "partition '{}': expected '{}' at '{}'", whole, token, rest);
  rest.remove_prefix(token.size());
}

}  // namespace

std::string Partition::to_string() const {
  if (length_ == 0) return "empty";
  constexpr size_t kFold = 3;  // two segments of a fused matrix read better unfolded
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

Partition Partition::parse(int devices, std::string_view text) {
  std::vector<Run> runs;
  std::string_view rest = text == "empty" ? "" : text;
  while (!rest.empty()) {
    if (!runs.empty()) take(rest, " ", text);
    Run run;
    run.length = take_number<int64_t>(rest, text);
    take(rest, ":{", text);
    run.owners.push_back(take_number<int>(rest, text));
    while (rest.starts_with(",")) {
      rest.remove_prefix(1);
      run.owners.push_back(take_number<int>(rest, text));
    }
    take(rest, "}", text);
    runs.push_back(std::move(run));
  }
  return Partition(devices, std::move(runs));
}

}  // namespace shoal::meta
