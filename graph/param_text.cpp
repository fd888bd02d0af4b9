#include "graph/param_text.h"

#include <fmt/format.h>
#include <fmt/ranges.h>

#include <algorithm>
#include <charconv>
#include <ranges>
#include <type_traits>

#include "base/error.h"

namespace shoal {
namespace {

// --- names of enumerators -------------------------------------------------------------------------------------

template <class E>
using Names = std::array<std::string_view, static_cast<size_t>(E::kCount)>;

template <class E>
constexpr Names<E> kNames{};
template <>
constexpr Names<UnaryKind> kNames<UnaryKind>{
#define SHOAL_UNARY(id, name) #name,
#include "graph/activations.def"
};
template <>
constexpr Names<GluKind> kNames<GluKind>{
#define SHOAL_GLU(id, name) #name,
#include "graph/activations.def"
};
template <>
constexpr Names<RopeMode> kNames<RopeMode>{"neighbours", "halves"};
template <>
constexpr Names<CompareKind> kNames<CompareKind>{"eq", "ne", "lt", "le", "gt", "ge"};
template <>
constexpr Names<PoolKind> kNames<PoolKind>{"max", "average"};
template <>
constexpr Names<PadMode> kNames<PadMode>{"constant", "reflect", "edge"};
template <>
constexpr Names<UpsampleMode> kNames<UpsampleMode>{"nearest", "bilinear", "corners"};

// --- printing -------------------------------------------------------------------------------------------------

std::string print(bool value) {
  return value ? "true" : "false";
}
template <class T>
  requires std::is_arithmetic_v<T>
std::string print(T value) {
  return fmt::format("{}", value);
}
std::string print(DType value) {
  return std::string(name_of(value));
}

std::string print(const std::string& value) {
  return fmt::format("\"{}\"", value);
}

template <class E>
  requires std::is_enum_v<E>
std::string print(E value) {
  static_assert(!kNames<E>.back().empty(), "one name for each enumerator");
  return std::string(kNames<E>[static_cast<size_t>(value)]);
}
template <std::ranges::range List>
std::string print(const List& values) {
  return fmt::format("[{}]", fmt::join(values, ","));
}
std::string print(const std::vector<IndexRange>& ranges) {
  std::string text;
  for (const IndexRange& range : ranges) {
    text += fmt::format("{}{}:{}", text.empty() ? "" : ",", range.begin, range.length);
  }
  return fmt::format("[{}]", text);
}

// --- parsing: returns false if the text is not a valid value --------------------------------------------------

std::string_view trim(std::string_view text) {
  constexpr std::string_view kBlank = " \t";
  const size_t begin = std::min(text.find_first_not_of(kBlank), text.size());
  return text.substr(begin, text.find_last_not_of(kBlank) + 1 - begin);
}

template <class T>
  requires std::is_arithmetic_v<T>
bool parse(std::string_view text, T& value) {
  const auto [end, error] = std::from_chars(text.data(), text.data() + text.size(), value);
  return error == std::errc() && end == text.data() + text.size();
}

/// Splits "[a, b]" into "a" and "b".
bool parse_list(std::string_view text, std::vector<std::string_view>& items) {
  if (text.size() < 2 || text.front() != '[' || text.back() != ']') return false;
  text = text.substr(1, text.size() - 2);
  if (trim(text).empty()) return true;
  for (;;) {
    const size_t comma = text.find(',');
    items.push_back(trim(text.substr(0, comma)));
    if (comma == std::string_view::npos) return true;
    text.remove_prefix(comma + 1);
  }
}

bool parse(std::string_view text, bool& value) {
  value = text == "true";
  return value || text == "false";
}
bool parse(std::string_view text, std::string& value) {
  if (text.size() < 2 || text.front() != '"' || text.back() != '"') return false;
  value = text.substr(1, text.size() - 2);
  return true;
}
bool parse(std::string_view text, DType& value) {
  const std::optional<DType> found = dtype_from_name(text);
  value = found.value_or(value);
  return found.has_value();
}

template <class E>
  requires std::is_enum_v<E>
bool parse(std::string_view text, E& value) {
  for (size_t i = 0; i < kNames<E>.size(); ++i) {
    if (kNames<E>[i] != text) continue;
    value = static_cast<E>(i);
    return true;
  }
  return false;
}
template <class T, size_t n>
bool parse(std::string_view text, std::array<T, n>& values) {
  std::vector<std::string_view> items;
  if (!parse_list(text, items) || items.size() != n) return false;
  for (size_t i = 0; i < n; ++i) {
    if (!parse(items[i], values[i])) return false;
  }
  return true;
}
bool parse(std::string_view text, std::vector<int64_t>& values) {
  std::vector<std::string_view> items;
  if (!parse_list(text, items)) return false;
  values.clear();
  return std::ranges::all_of(items, [&](std::string_view item) { return parse(item, values.emplace_back()); });
}
bool parse(std::string_view text, std::vector<IndexRange>& ranges) {
  std::vector<std::string_view> items;
  if (!parse_list(text, items)) return false;
  ranges.clear();
  for (const std::string_view item : items) {
    const size_t colon = item.find(':');
    if (colon == std::string_view::npos) return false;
    IndexRange& range = ranges.emplace_back();
    if (!parse(item.substr(0, colon), range.begin) || !parse(item.substr(colon + 1), range.length)) return false;
  }
  return true;
}

}  // namespace

std::vector<std::pair<std::string_view, std::string>> param_texts(const OpParams& params) {
  std::vector<std::pair<std::string_view, std::string>> texts;
  for_each_param(params, [&](std::string_view name, const auto& value) { texts.emplace_back(name, print(value)); });
  return texts;
}

void set_param(OpParams& params, std::string_view name, std::string_view text) {
  bool found = false;
  std::string known;
  for_each_param(params, [&](std::string_view field, auto& value) {
    known += fmt::format("{}{}", known.empty() ? "" : ", ", field);
    if (field != name) return;
    found = true;
    require<InvalidArgument>(parse(trim(text), value), "bad value '{}' of parameter '{}'", text, name);
  });
  require<InvalidArgument>(found, "unknown parameter '{}'; known: {}", name, known.empty() ? "none" : known);
}

void check_params(const OpParams& params) {
  for_each_param(params, []([[maybe_unused]] std::string_view name, [[maybe_unused]] const auto& value) {
    using Value = std::remove_cvref_t<decltype(value)>;
    if constexpr (std::is_same_v<Value, std::string>) {
      require<InvalidArgument>(value.find_first_of("\"#\n\r") == std::string::npos,
                               "parameter '{}' contains a quotation mark, a '#' or a line break, remove it: \"{}\"",
                               name, value);
    }
    if constexpr (std::is_enum_v<Value>) {
      require<InvalidArgument>(value < Value::kCount, "parameter '{}' has no value number {}", name,
                               static_cast<int>(value));
    }
  });
}

std::optional<int64_t> parse_integer(std::string_view text) {
  int64_t value = 0;
  return parse(text, value) ? std::optional(value) : std::nullopt;
}

std::optional<std::vector<int64_t>> parse_integers(std::string_view text) {
  std::vector<int64_t> values;
  return parse(trim(text), values) ? std::optional(std::move(values)) : std::nullopt;
}

}  // namespace shoal
