// Text of strangers in messages: names and keys of files, what a template says, descriptions of devices. Whatever the
// text is, it stays within one line, does not reach the terminal as commands, and does not turn the direction of what
// follows. Pure functions.
#pragma once

#include <cstddef>
#include <string>
#include <string_view>

namespace shoal {

/// Characters of foreign text that a message shows.
inline constexpr size_t kMostShown = 200;

/// With \n, \t, \r, \x1b (controls of ASCII), \u202e (controls of Unicode: C1, direction, line ends,
/// invisible marks) and \xff (bytes that are not UTF-8) for these; the rest as it is.
std::string escaped(std::string_view text);

/// The same, cut after `most` characters: "aaaa... (300 more)".
std::string printable(std::string_view text, size_t most = kMostShown);

}  // namespace shoal
