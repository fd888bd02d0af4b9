// Makes untrusted text safe for messages: file names and keys, template output, device descriptions. The result stays
// on one line, sends no commands to the terminal, and does not change the direction of the following text. Pure
// functions.
#pragma once

#include <cstddef>
#include <string>
#include <string_view>

namespace shoal {

/// Maximum number of untrusted characters that a message shows.
inline constexpr size_t kMostShown = 200;

/// Escapes ASCII control characters (as \n, \t, \r, \x1b), Unicode control characters (C1, direction, line ends and
/// invisible marks, as \u202e) and bytes that are not UTF-8 (as \xff). Other characters stay unchanged.
std::string escaped(std::string_view text);

/// As escaped(), but cut after `most` characters: "aaaa... (300 more)".
std::string printable(std::string_view text, size_t most = kMostShown);

}  // namespace shoal
