#include "base/printable.h"

#include <fmt/format.h>

#include <algorithm>
#include <array>
#include <cstdint>
#include <iterator>

namespace shoal {
namespace {

struct Character {
  uint32_t code = 0;
  size_t bytes = 1;
  bool is_valid = true;
};

/// Decodes the first character of a non-empty UTF-8 text. Overlong encodings and surrogates are invalid.
Character first_of(std::string_view text) {
  const auto byte = [&](size_t i) -> uint32_t { return static_cast<unsigned char>(text[i]); };
  const uint32_t lead = byte(0);
  if (lead < 0x80) return {lead};
  const size_t bytes = lead >= 0xf0 ? 4 : lead >= 0xe0 ? 3 : 2;
  if (lead < 0xc2 || lead > 0xf4 || text.size() < bytes) return {lead, 1, false};
  uint32_t code = lead & (0xffU >> (bytes + 1));
  for (size_t i = 1; i < bytes; ++i) {
    if ((byte(i) & 0xc0) != 0x80) return {lead, 1, false};
    code = code << 6 | (byte(i) & 0x3f);
  }
  constexpr std::array<uint32_t, 5> kLeast{0, 0, 0x80, 0x800, 0x10000};
  const bool is_surrogate = code >= 0xd800 && code <= 0xdfff;
  if (code < kLeast[bytes] || code > 0x10ffff || is_surrogate) return {lead, 1, false};
  return {code, bytes};
}

/// Whether the code point is a control character, or an invisible character that changes the display of other
/// characters. Joiners (U+200C, U+200D) do not count as control characters, because words and emoji contain joiners.
bool is_control(uint32_t code) {
  struct Range {
    uint32_t first, last;
  };
  constexpr std::array<Range, 11> kControls{{{0x00, 0x1f},
                                             {0x7f, 0x9f},
                                             {0xad, 0xad},
                                             {0x61c, 0x61c},
                                             {0x180e, 0x180e},
                                             {0x200b, 0x200b},
                                             {0x200e, 0x200f},
                                             {0x2028, 0x202e},
                                             {0x2060, 0x206f},
                                             {0xfeff, 0xfeff},
                                             {0xe0000, 0xe007f}}};
  return std::any_of(kControls.begin(), kControls.end(),
                     [code](const Range& range) { return code >= range.first && code <= range.last; });
}

void append(std::string& out, std::string_view text, const Character& character) {
  const uint32_t code = character.code;
  if (character.is_valid && !is_control(code)) {
    out += text.substr(0, character.bytes);
  } else if (code == '\n' || code == '\t' || code == '\r') {
    out += code == '\n' ? "\\n" : code == '\t' ? "\\t" : "\\r";
  } else if (code < 0x80 || !character.is_valid) {
    fmt::format_to(std::back_inserter(out), "\\x{:02x}", code);
  } else {
    fmt::format_to(std::back_inserter(out), "\\u{:04x}", code);
  }
}

}  // namespace

std::string escaped(std::string_view text) {
  return printable(text, text.size());
}

std::string printable(std::string_view text, size_t most) {
  std::string out;
  size_t shown = 0, more = 0;
  while (!text.empty()) {
    const Character character = first_of(text);
    if (shown < most) {
      append(out, text, character);
      ++shown;
    } else {
      ++more;
    }
    text.remove_prefix(character.bytes);
  }
  if (more > 0) fmt::format_to(std::back_inserter(out), "... (omitted characters: {})", more);
  return out;
}

}  // namespace shoal
