// Makes untrusted text safe for messages. Untrusted text is, for example, a file name, a key in a file, the output of a
// template, or the description of a device. The result stays on one line, sends no commands to the terminal, and does
// not change the direction of the following text. All functions are pure.
#pragma once

#include <cstddef>
#include <string>
#include <string_view>

namespace shoal {

/// Default limit for the number of characters of an untrusted text in a message.
inline constexpr size_t kMostShown = 200;

/// Replaces the following characters with escape sequences, and leaves all other characters unchanged:
/// - ASCII control characters become \n, \t, \r, \x1b and similar sequences.
/// - Unicode control characters (C1, direction, line ends and invisible marks) become sequences like \u202e.
/// - Bytes that are not UTF-8 become sequences like \xff.
std::string escaped(std::string_view text);

/// Like escaped(), but cuts the text after `most` characters. Example: "aaaa... (omitted characters: 300)".
std::string printable(std::string_view text, size_t most = kMostShown);

}  // namespace shoal
