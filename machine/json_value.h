// Reads descriptions of machines from JSON. Each error names the path of the value: "machine.json:
// devices[1].bandwidth: expected a positive number, got 0". A JsonValue refers to the parsed JSON. The JSON must
// outlive the JsonValue. All functions throw InvalidArgument for unexpected values.
#pragma once

#include <cstdint>
#include <initializer_list>
#include <nlohmann/json.hpp>
#include <optional>
#include <string>
#include <string_view>
#include <utility>
#include <vector>

namespace shoal::machine {

/// Parses JSON and rejects duplicate keys, because the second value would silently replace the first. Errors begin with
/// the origin, such as a file name.
nlohmann::ordered_json parse_named_json(std::string_view text, std::string_view origin);

/// A JSON value and its path.
class JsonValue {
 public:
  using Json = nlohmann::ordered_json;
  JsonValue(const Json& json, std::string_view origin, std::string path = {})
      : json_(&json), origin_(origin), path_(std::move(path)) {}

  [[noreturn]] void refuse(std::string_view expected) const { refuse(expected, shown()); }
  [[noreturn]] void refuse(std::string_view expected, std::string_view got) const;

  /// Requires an object whose keys are all in `keys`.
  const JsonValue& object(std::initializer_list<std::string_view> keys) const;
  std::vector<std::pair<std::string, JsonValue>> members() const;
  bool has(std::string_view key) const { return json_->find(key) != json_->end(); }
  JsonValue at(std::string_view key) const;
  std::optional<JsonValue> find(std::string_view key) const {
    return has(key) ? std::optional<JsonValue>(member(key)) : std::nullopt;
  }
  /// Requires a list that is not empty.
  std::vector<JsonValue> list(std::string_view expected) const;

  std::string text() const;
  /// Requires a name without blanks and commas, so that lists of devices ("CPU0,CPU1") can contain the name.
  std::string device_name() const;
  double positive() const;
  double not_negative() const;
  bool is(int wanted) const { return json_->is_number() && json_->get<double>() == wanted; }
  /// Requires a number above 0 and at most 1.
  double part() const;
  int64_t whole(int64_t least, int64_t most) const;
  bool truth() const;

 private:
  JsonValue member(std::string_view key) const { return {(*json_)[std::string(key)], origin_, member_name(key)}; }
  JsonValue member_path(std::string_view key) const { return {*json_, origin_, member_name(key)}; }
  std::string member_name(std::string_view key) const;
  [[noreturn]] void refuse_key(std::initializer_list<std::string_view> keys) const;
  template <class Test>
  double number(std::string_view expected, const Test& test) const;
  std::string shown() const;  ///< the value as one short line

  const Json* json_;
  std::string_view origin_;
  std::string path_;
};

}  // namespace shoal::machine
