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

/// Returns the name and text of every parameter in `params`, in the order of `fields`.
std::vector<std::pair<std::string_view, std::string>> param_texts(const OpParams& params);

/// Sets one parameter from text. Throws InvalidArgument with the known names or the bad value.
void set_param(OpParams& params, std::string_view name, std::string_view text);

/// Throws InvalidArgument if a value is not an enumerator of its type.
void check_params(const OpParams& params);

/// Returns nullopt if the text is not an integer or if the integer does not fit into 64 bits.
std::optional<int64_t> parse_integer(std::string_view text);

/// Parses "[1, 2]" to 1, 2. Returns nullopt if the text is malformed.
std::optional<std::vector<int64_t>> parse_integers(std::string_view text);

}  // namespace shoal
