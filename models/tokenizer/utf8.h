// UTF-8 functions of the tokenizer: the length of a valid sequence, and whether a text stops inside a sequence. A
// sequence is valid if RFC 3629 allows it. RFC 3629 excludes overlong forms, surrogates and code points above U+10FFFF.
// Pure functions.
#pragma once

#include <cstddef>
#include <string_view>

namespace shoal::models {

/// Length in bytes (1..4) of the valid sequence at the start of `text`; 0 if `text` does not start with a valid
/// sequence.
size_t utf8_sequence(std::string_view text);

/// Number of bytes of white space at the start of `text`.
size_t white_space(std::string_view text);

/// Number of bytes at the end of `text` that begin an incomplete but valid sequence (0..3).
///   utf8_incomplete_tail("a\xe2\x82") == 2   (U+20AC is e2 82 ac)
///   utf8_incomplete_tail("a\x82") == 0       (no further bytes make this text valid)
size_t utf8_incomplete_tail(std::string_view text);

}  // namespace shoal::models
