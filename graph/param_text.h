// Internal to graph/: conversion of op parameters to text and back. Each parameter type has one pair of functions;
// enumerations have tables of names. A float is printed as the shortest text that parses to the same value.
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

/// Sets one parameter from text. Throws InvalidArgument with the known names or the bad value.
void set_param(OpParams& params, std::string_view name, std::string_view text);

/// Throws InvalidArgument if a value is not an enumerator of its type.
void check_params(const OpParams& params);

/// nullopt unless the whole text is an integer that fits into 64 bits.
std::optional<int64_t> parse_integer(std::string_view text);

/// "[1, 2]" -> 1, 2. nullopt if it is malformed.
std::optional<std::vector<int64_t>> parse_integers(std::string_view text);

}  // namespace shoal
