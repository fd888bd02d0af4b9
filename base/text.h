// Parses parameters that a user writes, such as "threads=4,max_size=64M". Error messages list the known parameters.
// Other functions convert sizes in bytes to text and text to sizes. All functions are thread-safe.
#pragma once

#include <cstdint>
#include <initializer_list>
#include <map>
#include <string>
#include <string_view>
#include <utility>
#include <vector>

namespace shoal {

/// Parses a size such as "1048576", "512K", "64M" or "2G" (powers of 1024). Throws InvalidArgument for other text.
size_t parse_bytes(std::string_view text);
/// Formats a size as "512 B", "1.5 KiB" or "16.0 GiB".
std::string format_bytes(size_t bytes);
/// Returns the whole decimal number in `text`. Throws InvalidArgument if `text` is not a whole decimal number, or if
/// the number is outside [min, max]. The message begins with `what`.
int64_t parse_integer(std::string_view what, std::string_view text, int64_t min, int64_t max);

/// Splits "a=1,b=2" into pairs of key and value. The separator is ',' or ' '. Throws InvalidArgument if a pair has no
/// '='.
std::vector<std::pair<std::string, std::string>> parse_params(std::string_view text, char separator = ',');

/// The parsed parameters of one device, family or backend.
class Params {
 public:
  /// Throws InvalidArgument if a parameter has no '=', if a key is repeated, or if a key is not in `known`. The message
  /// begins with `owner`, for example "CPU0".
  Params(std::string_view owner, std::string_view text, std::initializer_list<std::string_view> known);

  bool has(std::string_view key) const { return values_.contains(key); }
  /// Returns `fallback` if the key is absent. Throws InvalidArgument for a value outside [min, max].
  int64_t integer(std::string_view key, int64_t fallback, int64_t min, int64_t max) const;
  size_t bytes(std::string_view key, size_t fallback) const;
  std::string text(std::string_view key, std::string_view fallback = {}) const;

 private:
  std::string owner_;
  std::map<std::string, std::string, std::less<>> values_;
};

}  // namespace shoal
