#include "machine/json_value.h"

#include <fmt/format.h>

#include <algorithm>
#include <cmath>
#include <set>

#include "base/error.h"
#include "base/json_text.h"
#include "base/printable.h"

namespace shoal::machine {
namespace {

constexpr double kLargest = 1e30;  ///< largest accepted number; the smallest accepted positive number is 1 / kLargest.
                                   ///< Real rates and times are in this range, and their sums stay finite.

/// Whether lists of devices ("CPU0,CPU1") can contain the name.
bool is_name(std::string_view text) {
  return !text.empty() && std::none_of(text.begin(), text.end(),
                                       [](char c) { return c == ',' || static_cast<unsigned char>(c) <= ' '; });
}

/// Converts the offset of a byte to a text such as "line 3, column 14".
std::string place_of(std::string_view text, size_t byte) {
  const std::string_view before = text.substr(0, std::min(byte, text.size()));
  const auto line = std::count(before.begin(), before.end(), '\n') + 1;
  const size_t begin = before.rfind('\n');
  return fmt::format("line {}, column {}", line, before.size() - (begin == before.npos ? 0 : begin + 1));
}

}  // namespace

nlohmann::ordered_json parse_named_json(std::string_view text, std::string_view origin) {
  using Json = nlohmann::ordered_json;
  std::vector<std::set<std::string>> keys;
  const auto see = [&](int, Json::parse_event_t event, Json& value) {
    if (event == Json::parse_event_t::object_start) keys.emplace_back();
    if (event == Json::parse_event_t::object_end) keys.pop_back();
    if (event == Json::parse_event_t::key && !keys.back().insert(value.get<std::string>()).second) {
      fail<InvalidArgument>("the key {} occurs twice in one object",
                            printable(value.dump(-1, ' ', false, Json::error_handler_t::replace)));
    }
    return true;
  };
  try {
    return parse_json<Json>(text, see);
  } catch (const InvalidArgument& error) {
    fail<InvalidArgument>("{}: {}", origin, error.what());
  } catch (const Json::parse_error& error) {
    fail<InvalidArgument>("{}: invalid JSON at {}; see docs/simulation.md for the format", origin,
                          place_of(text, error.byte));
  } catch (const Json::out_of_range&) {
    fail<InvalidArgument>("{}: a number in this text is too large", origin);
  }
}

void JsonValue::refuse(std::string_view expected, std::string_view got) const {
  fail<InvalidArgument>("{}: {}{}expected {}, got {}", origin_, printable(path_), path_.empty() ? "" : ": ", expected,
                        printable(got));
}

const JsonValue& JsonValue::object(std::initializer_list<std::string_view> keys) const {
  if (!json_->is_object()) refuse("an object");
  for (const auto& [key, value] : json_->items()) {
    if (std::find(keys.begin(), keys.end(), key) == keys.end()) member(key).refuse_key(keys);
  }
  return *this;
}

std::vector<std::pair<std::string, JsonValue>> JsonValue::members() const {
  if (!json_->is_object()) refuse("an object");
  std::vector<std::pair<std::string, JsonValue>> found;
  for (const auto& item : json_->items()) found.emplace_back(item.key(), member(item.key()));
  return found;
}

JsonValue JsonValue::at(std::string_view key) const {
  if (!has(key)) member_path(key).refuse("a value", "nothing");
  return member(key);
}

std::vector<JsonValue> JsonValue::list(std::string_view expected) const {
  if (!json_->is_array() || json_->empty()) refuse(expected);
  std::vector<JsonValue> values;
  for (size_t i = 0; i < json_->size(); ++i) {
    values.emplace_back((*json_)[i], origin_, fmt::format("{}[{}]", path_, i));
  }
  return values;
}

std::string JsonValue::text() const {
  if (!json_->is_string()) refuse("text");
  return json_->get<std::string>();
}

std::string JsonValue::device_name() const {
  if (!json_->is_string() || !is_name(json_->get_ref<const std::string&>())) {
    refuse("a name without blanks or commas");
  }
  return text();
}

template <class Test>
double JsonValue::number(std::string_view expected, const Test& test) const {
  if (!json_->is_number()) refuse(expected);
  const double value = json_->get<double>();
  if (!std::isfinite(value) || !test(value)) refuse(expected);
  return value;
}

double JsonValue::positive() const {
  return number("a positive number", [](double value) { return value >= 1 / kLargest && value <= kLargest; });
}

double JsonValue::not_negative() const {
  return number("a number of 0 or more", [](double value) { return value >= 0 && value <= kLargest; });
}

double JsonValue::part() const {
  return number("a number above 0 and at most 1", [](double value) { return value > 0 && value <= 1; });
}

int64_t JsonValue::whole(int64_t least, int64_t most) const {
  const auto fits = [&](double value) {
    return value == std::floor(value) && value >= static_cast<double>(least) && value <= static_cast<double>(most);
  };
  return static_cast<int64_t>(number(fmt::format("a whole number from {} to {}", least, most), fits));
}

bool JsonValue::truth() const {
  if (!json_->is_boolean()) refuse("true or false");
  return json_->get<bool>();
}

std::string JsonValue::member_name(std::string_view key) const {
  return path_.empty() ? std::string(key) : fmt::format("{}.{}", path_, key);
}

void JsonValue::refuse_key(std::initializer_list<std::string_view> keys) const {
  std::string known;
  for (const std::string_view key : keys) known += (known.empty() ? "" : ", ") + std::string(key);
  fail<InvalidArgument>("{}: {}: unknown key; known keys: {}", origin_, path_, known);
}

std::string JsonValue::shown() const {
  constexpr size_t kMost = 40;
  std::string text = json_->dump(-1, ' ', true, Json::error_handler_t::replace);
  if (text.size() > kMost) text = text.substr(0, kMost) + "...";
  return text;
}

}  // namespace shoal::machine
