// "Did you mean": the known name that a mistyped one is closest to.
#pragma once

#include <span>
#include <string>
#include <string_view>

namespace shoal::tools {

/// " (did you mean --temp?)", or nothing. Names the only one that begins so; or else the one with the fewest characters
/// put in, left out, replaced, or swapped with their neighbour: at most one in 3 to 5 characters, or two in more.
/// Dashes in front do not count.
std::string did_you_mean(std::string_view text, std::span<const std::string> known);

}  // namespace shoal::tools
