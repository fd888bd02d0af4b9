// Reads JSON from elsewhere. A text of a few hundred kilobytes can have lists in each other so deep that
// copying or printing the value, which goes down one call per level, is out of stack: every JSON text that does not
// come from this program itself is read here.
#pragma once

#include <nlohmann/json.hpp>
#include <string_view>

#include "base/error.h"

namespace shoal {

/// Lists and objects in each other, one for each `[` or `{`; no format of ours has half as many.
inline constexpr int kDeepestJson = 16;

/// Throws what Json::parse throws for what is no JSON, InvalidArgument for what is too deep, and what `see` throws,
/// which is called as Json::parse calls its callback.
template <class Json = nlohmann::json, class See>
Json parse_json(std::string_view text, const See& see) {
  return Json::parse(text, [&see](int depth, typename Json::parse_event_t event, Json& value) {
    require<InvalidArgument>(depth <= kDeepestJson, "lists and objects in each other, more than {} deep", kDeepestJson);
    return see(depth, event, value);
  });
}

template <class Json = nlohmann::json>
Json parse_json(std::string_view text) {
  return parse_json<Json>(text, [](int, typename Json::parse_event_t, Json&) { return true; });
}

/// A value that is_discarded(), and is of no type, for what cannot be read.
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
