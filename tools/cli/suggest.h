// "Did you mean": the known name that a mistyped one is closest to.
#pragma once

#include <cstddef>
#include <span>
#include <string>
#include <string_view>

namespace shoal::tools {

/// The least number of characters put in, left out, replaced, or swapped with their neighbour, that makes one of the
/// other: "tmep" -> "temp" is 1.
size_t edit_distance(std::string_view one, std::string_view other);

/// The only name that begins so; or else the one with least distance, where that is one slip in 3 to 5 characters or
/// two in more. Of names with as many dashes in front: "--ctx" is none of "-ctk". Only what has one dash may be meant
/// to have two. "" where there is none.
std::string nearest(std::string_view text, std::span<const std::string> known);

/// " (did you mean --temp?)", or nothing.
std::string did_you_mean(std::string_view text, std::span<const std::string> known);

}  // namespace shoal::tools
