// Flags with values that shoal parses itself, such as decimal numbers in a range. CLI11's own conversions would accept
// "010" and "1e99". Errors name the flag. The variables that receive the values must outlive the parsing.
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

/// "a, b ,c" -> {"a", "b", "c"}: the parts between commas, without blanks at their ends. "" -> {""}.
std::vector<std::string> split_list(std::string_view text);

/// Parses a finite decimal number in [min, max]. Throws InvalidArgument on an error.
double parse_number(std::string_view flag, std::string_view text, double min, double max);

/// Parses an unsigned 64-bit number. Throws InvalidArgument on an error.
uint64_t parse_seed(std::string_view flag, std::string_view text);

/// Parses token ids: "1, 2,3" -> {1, 2, 3}, "" -> {}. Throws InvalidArgument on an error.
std::vector<int32_t> parse_ids(std::string_view flag, std::string_view text);

/// Registers a file that a flag reads, so that no output overwrites the file. Throws InvalidArgument if the file
/// name is empty.
void check_file_name(std::string_view flag, std::string_view name);

/// A function that receives the longest name of the flag and the text of a value. Throws InvalidArgument for a wrong
/// value.
using ValueReader = std::function<void(const std::string& flag, const std::string& text)>;
CLI::Option* add_parsed(CLI::App& app, const std::string& names, const char* type, const ValueReader& read,
                        const std::string& help);
/// Adds a flag that may be repeated; `read` receives each value.
CLI::Option* add_repeated(CLI::App& app, const std::string& names, const char* type, const ValueReader& read,
                          const std::string& help);
/// Adds a flag with a comma-separated list. `read` receives all values joined to one list: "1,2,3" for "-p 1,2 -p 3".
CLI::Option* add_list(CLI::App& app, const std::string& names, const char* type, const ValueReader& read,
                      const std::string& help);

/// Runs a check. If the check throws, puts the name of the flag in front of the error message.
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

/// Adds an optional integer; the help shows `usual` as its default.
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

/// Largest number of tokens, because positions are i32.
inline constexpr int64_t kMostTokens = std::numeric_limits<int32_t>::max();

}  // namespace shoal::tools
