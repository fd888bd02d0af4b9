// Reads all JSON that this program did not write, with a limit on nesting. Copying or printing a value recurses once
// per level, so a few hundred kilobytes of nested lists would overflow the stack.
#pragma once

#include <nlohmann/json.hpp>
#include <string_view>

#include "base/error.h"

namespace shoal {

/// Maximum nesting depth: one level for each `[` or `{`. shoal's formats use less than half of it.
inline constexpr int kDeepestJson = 16;

/// Throws the errors of Json::parse for invalid JSON, InvalidArgument for nesting that is too deep, and any error of
/// `see`. `see` is called like the callback of Json::parse.
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

/// Returns a discarded value (is_discarded()) if the text cannot be read.
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
