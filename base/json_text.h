// Parses all JSON that users or other programs wrote. The nesting depth is limited, because the functions that copy or
// print a value recurse once per nesting level. Without the limit, a few hundred kilobytes of nested lists would
// overflow the stack.
#pragma once

#include <nlohmann/json.hpp>
#include <string_view>

#include "base/error.h"

namespace shoal {

/// Maximum nesting depth. Each `[` or `{` adds one level. The formats of shoal need less than half of this depth.
inline constexpr int kDeepestJson = 16;

/// Parses the text. Throws the errors of Json::parse if the JSON is invalid. Throws InvalidArgument if the nesting is
/// too deep. `see` is called like the callback of Json::parse. The caller also gets the exceptions that `see` throws.
template <class Json = nlohmann::json, class See>
Json parse_json(std::string_view text, const See& see) {
  return Json::parse(text, [&see](int depth, typename Json::parse_event_t event, Json& value) {
    require<InvalidArgument>(depth <= kDeepestJson, "lists and objects are nested more than {} deep", kDeepestJson);
    return see(depth, event, value);
  });
}

template <class Json = nlohmann::json>
Json parse_json(std::string_view text) {
  return parse_json<Json>(text, [](int, typename Json::parse_event_t, Json&) { return true; });
}

/// Parses the text. Returns a discarded value (is_discarded()) if the text is not valid.
template <class Json = nlohmann::json>
Json parse_json_or_nothing(std::string_view text) {
  try {
    return parse_json<Json>(text);
  } catch (const InvalidArgument&) {
  } catch (const typename Json::exception&) {
  }
  return Json(Json::value_t::discarded);
}

}  // namespace shoal
