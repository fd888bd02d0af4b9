// Options that read their values themselves: decimal numbers in a range instead of whatever a conversion makes of
// "010" or "1e99", with a message that names the flag. The values must live as long as the app is parsed.
#pragma once

#include <fmt/core.h>

#include <CLI/CLI.hpp>

#include <cstdint>
#include <functional>
#include <limits>
#include <optional>
#include <string>
#include <string_view>
#include <vector>

#include "base/error.h"
#include "base/text.h"

namespace shoal::tools {

/// "a, b ,c" -> {"a", "b", "c"}: parts between commas without the blanks around them. "" -> {""}.
std::vector<std::string> split_list(std::string_view text);

/// A finite decimal number in [min, max]. Throws InvalidArgument that names `flag`.
double parse_number(std::string_view flag, std::string_view text, double min, double max);

/// A whole number that 64 bits hold. Throws InvalidArgument that names `flag`.
uint64_t parse_seed(std::string_view flag, std::string_view text);

/// "1, 2,3" -> {1, 2, 3}, "" -> {}. Throws InvalidArgument that names `flag`.
std::vector<int32_t> parse_ids(std::string_view flag, std::string_view text);

/// For a flag that names a file to read: no output replaces that file. Throws InvalidArgument that names `flag` for an
/// empty name.
void check_file_name(std::string_view flag, std::string_view name);

/// What is told the text of a value and the flag's longest name; throws InvalidArgument.
using ValueReader = std::function<void(const std::string& flag, const std::string& text)>;
CLI::Option* add_parsed(CLI::App& app, const std::string& names, const char* type, const ValueReader& read,
                        const std::string& help);
/// The same for a flag that may be given several times: `read` is told each.
CLI::Option* add_repeated(CLI::App& app, const std::string& names, const char* type, const ValueReader& read,
                          const std::string& help);
/// The same for a list with commas: `read` is told all values as one list, "-p 1,2 -p 3" as "1,2,3".
CLI::Option* add_list(CLI::App& app, const std::string& names, const char* type, const ValueReader& read,
                      const std::string& help);

/// Puts the flag in front of what a check has to say.
template <class Check>
void naming(const std::string& flag, const Check& check) {
  try {
    check();
  } catch (const InvalidArgument& error) {
    throw InvalidArgument(fmt::format("{}: {}", flag, error.what()));
  }
}

template <class T>
CLI::Option* add_integer(CLI::App& app, const std::string& names, T& value, int64_t min, int64_t max,
                         const std::string& help) {
  auto read = [&value, min, max](const std::string& flag, const std::string& text) {
    value = static_cast<T>(parse_integer(flag, text, min, max));
  };
  return add_parsed(app, names, "INT", read, help)->default_str(fmt::format("{}", value));
}

/// The same for a value that the user may leave out: `usual` stands in the help.
inline CLI::Option* add_integer(CLI::App& app, const std::string& names, std::optional<int64_t>& value, int64_t min,
                                int64_t max, int64_t usual, const std::string& help) {
  auto read = [&value, min, max](const std::string& flag, const std::string& text) {
    value = parse_integer(flag, text, min, max);
  };
  return add_parsed(app, names, "INT", read, help)->default_str(fmt::format("{}", usual));
}

template <class T>
CLI::Option* add_number(CLI::App& app, const std::string& names, T& value, double min, double max,
                        const std::string& help) {
  auto read = [&value, min, max](const std::string& flag, const std::string& text) {
    value = static_cast<T>(parse_number(flag, text, min, max));
  };
  return add_parsed(app, names, "NUMBER", read, help)->default_str(fmt::format("{}", value));
}

/// Largest count of tokens: positions are i32.
inline constexpr int64_t kMostTokens = std::numeric_limits<int32_t>::max();

}  // namespace shoal::tools
