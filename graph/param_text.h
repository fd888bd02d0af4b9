// Internal to graph/: values of op parameters as text and back. One pair of functions for each type that a
// parameter can have; enumerators have tables of names. Floats print as the shortest text that reads back exactly.
#pragma once

#include <array>
#include <optional>
#include <string>
#include <string_view>
#include <utility>
#include <vector>

#include "graph/op.h"

namespace shoal {

/// Name and text of every parameter of the variant, in the order of `fields`.
std::vector<std::pair<std::string_view, std::string>> param_texts(const OpParams& params);

/// Sets one parameter from text. Throws InvalidArgument that lists the known names or quotes the bad value.
void set_param(OpParams& params, std::string_view name, std::string_view text);

/// Throws InvalidArgument for a number that is not an enumerator.
void check_params(const OpParams& params);

/// nullopt when `text` is not wholly a number that fits.
std::optional<int64_t> parse_integer(std::string_view text);

/// "[1, 2]" -> 1, 2. nullopt when it is malformed.
std::optional<std::vector<int64_t>> parse_integers(std::string_view text);

}  // namespace shoal
