#include "tools/cli/options.h"

#include <fmt/ranges.h>

#include <algorithm>
#include <charconv>
#include <cmath>

#include "base/error.h"
#include "base/user_file.h"

namespace shoal::tools {
namespace {

std::string_view trim(std::string_view text) {
  constexpr std::string_view kBlanks = " \t";
  text.remove_prefix(std::min(text.find_first_not_of(kBlanks), text.size()));
  return text.substr(0, text.find_last_not_of(kBlanks) + 1);
}

std::string range_text(double min, double max) {
  constexpr double kHuge = std::numeric_limits<float>::max();
  if (min <= -kHuge) return "a finite number";
  if (max >= kHuge) return fmt::format("a finite number of at least {}", min);
  return fmt::format("a number from {} to {}", min, max);
}

}  // namespace

std::vector<std::string> split_list(std::string_view text) {
  std::vector<std::string> out;
  for (size_t begin = 0; begin <= text.size();) {
    size_t end = std::min(text.find(',', begin), text.size());
    out.emplace_back(trim(text.substr(begin, end - begin)));
    begin = end + 1;
  }
  return out;
}

double parse_number(std::string_view flag, std::string_view text, double min, double max) {
  double value = 0.0;
  auto [end, error] = std::from_chars(text.data(), text.data() + text.size(), value);
  bool whole = error == std::errc() && end == text.data() + text.size();
  require<InvalidArgument>(whole && std::isfinite(value) && value >= min && value <= max, "{} must be {}, got '{}'",
                           flag, range_text(min, max), text);
  return value;
}

uint64_t parse_seed(std::string_view flag, std::string_view text) {
  uint64_t seed = 0;
  auto [end, error] = std::from_chars(text.data(), text.data() + text.size(), seed);
  bool whole = error == std::errc() && end == text.data() + text.size();
  require<InvalidArgument>(whole, "{} must be a whole number from 0 to {}, or -1 for a random one, got '{}'", flag,
                           std::numeric_limits<uint64_t>::max(), text);
  return seed;
}

std::vector<int32_t> parse_ids(std::string_view flag, std::string_view text) {
  std::vector<int32_t> ids;
  if (trim(text).empty()) return ids;
  for (const std::string& part : split_list(text)) {
    ids.push_back(static_cast<int32_t>(parse_integer(flag, part, 0, kMostTokens)));
  }
  return ids;
}

void check_file_name(std::string_view flag, std::string_view name) {
  require<InvalidArgument>(!name.empty(), "{}: the file name is empty; give the path of a file", flag);
  note_input(name);
}

CLI::Option* add_parsed(CLI::App& app, const std::string& names, const char* type, const ValueReader& read,
                        const std::string& help) {
  std::string flag = names.substr(names.rfind(',') + 1);
  auto take = [read, flag](const std::string& text) { read(flag, text); };
  return app.add_option_function<std::string>(names, take, help)->type_name(type);
}

CLI::Option* add_repeated(CLI::App& app, const std::string& names, const char* type, const ValueReader& read,
                          const std::string& help) {
  const std::string flag = names.substr(names.rfind(',') + 1);
  const auto take = [read, flag](const std::vector<std::string>& texts) {
    for (const std::string& text : texts) read(flag, text);
  };
  return app.add_option_function<std::vector<std::string>>(names, take, help)->type_name(type)->allow_extra_args(false);
}

CLI::Option* add_list(CLI::App& app, const std::string& names, const char* type, const ValueReader& read,
                      const std::string& help) {
  const std::string flag = names.substr(names.rfind(',') + 1);
  const auto take = [read, flag](const std::vector<std::string>& texts) {
    read(flag, fmt::format("{}", fmt::join(texts, ",")));
  };
  return app.add_option_function<std::vector<std::string>>(names, take, help)->type_name(type)->allow_extra_args(false);
}

}  // namespace shoal::tools
