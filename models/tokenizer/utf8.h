// UTF-8 as the tokenizer needs it: where a valid sequence ends, and whether a text stops in the middle of one.
// Valid means as in RFC 3629: no overlong forms, no surrogates, nothing above U+10FFFF. Pure functions.
#pragma once

#include <cstddef>
#include <string_view>

namespace shoal::models {

/// Bytes of the valid sequence that `text` starts with (1..4); 0 when it starts with none.
size_t utf8_sequence(std::string_view text);

/// Bytes of the white space that `text` starts with.
size_t white_space(std::string_view text);

/// Bytes at the end of `text` that begin a sequence which more bytes could complete (0..3).
///   utf8_incomplete_tail("a\xe2\x82") == 2   (U+20AC is e2 82 ac)
///   utf8_incomplete_tail("a\x82") == 0       (nothing can make it valid)
size_t utf8_incomplete_tail(std::string_view text);

}  // namespace shoal::models
