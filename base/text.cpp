#include "base/text.h"

#include <fmt/format.h>

#include <algorithm>
#include <array>
#include <charconv>
#include <limits>
#include <vector>

#include "base/error.h"

namespace shoal {

std::vector<std::pair<std::string, std::string>> parse_params(std::string_view text, char separator) {
  std::vector<std::pair<std::string, std::string>> pairs;
  while (!text.empty()) {
    const size_t end = std::min(text.find(separator), text.size());
    const std::string_view part = text.substr(0, end);
    text.remove_prefix(std::min(end + 1, text.size()));
    if (part.empty()) continue;
    const size_t equals = part.find('=');
    require<InvalidArgument>(equals != std::string_view::npos && equals > 0,
                             "parameter '{}' has no value: write key=value", part);
    pairs.emplace_back(part.substr(0, equals), part.substr(equals + 1));
  }
  return pairs;
}

size_t parse_bytes(std::string_view text) {
  constexpr std::string_view kUnits = "KMGT";
  size_t shift = 0;
  std::string_view digits = text;
  if (!digits.empty()) {
    const char last = static_cast<char>(digits.back() & ~0x20);  // unit letter in upper case
    if (const size_t unit = kUnits.find(last); unit != std::string_view::npos) {
      shift = 10 * (unit + 1);
      digits.remove_suffix(1);
    }
  }
  size_t value = 0;
  const auto [end, error] = std::from_chars(digits.data(), digits.data() + digits.size(), value);
  const bool whole = error == std::errc() && end == digits.data() + digits.size() && !digits.empty();
  require<InvalidArgument>(whole && value <= (std::numeric_limits<size_t>::max() >> shift),
                           "'{}' is not a size: write bytes, or a number with K, M, G or T", text);
  return value << shift;
}

std::string format_bytes(size_t bytes) {
  constexpr std::array<std::string_view, 5> kUnits{"KiB", "MiB", "GiB", "TiB", "PiB"};
  if (bytes < 1024) return fmt::format("{} B", bytes);
  double value = static_cast<double>(bytes) / 1024;
  size_t unit = 0;
  for (; value >= 1024 && unit + 1 < kUnits.size(); ++unit) value /= 1024;
  return fmt::format("{:.1f} {}", value, kUnits[unit]);
}

int64_t parse_integer(std::string_view what, std::string_view text, int64_t min, int64_t max) {
  int64_t value = 0;
  const auto [end, error] = std::from_chars(text.data(), text.data() + text.size(), value);
  const bool whole = error == std::errc() && end == text.data() + text.size();
  require<InvalidArgument>(whole && value >= min && value <= max, "{} must be a whole number from {} to {}, got '{}'",
                           what, min, max, text);
  return value;
}

Params::Params(std::string_view owner, std::string_view text, std::initializer_list<std::string_view> known)
    : owner_(owner) {
  for (auto& [key, value] : parse_params(text)) {
    require<InvalidArgument>(std::find(known.begin(), known.end(), key) != known.end(),
                             "{}: unknown parameter '{}'; known: {}", owner_, key, fmt::join(known, ", "));
    require<InvalidArgument>(!values_.contains(key), "{}: parameter '{}' is given twice", owner_, key);
    values_.emplace(std::move(key), std::move(value));
  }
}

int64_t Params::integer(std::string_view key, int64_t fallback, int64_t min, int64_t max) const {
  const auto found = values_.find(key);
  if (found == values_.end()) return fallback;
  return parse_integer(fmt::format("{}: parameter '{}'", owner_, key), found->second, min, max);
}

size_t Params::bytes(std::string_view key, size_t fallback) const {
  const auto found = values_.find(key);
  return found == values_.end() ? fallback : parse_bytes(found->second);
}

std::string Params::text(std::string_view key, std::string_view fallback) const {
  const auto found = values_.find(key);
  return std::string(found == values_.end() ? fallback : std::string_view(found->second));
}

}  // namespace shoal
