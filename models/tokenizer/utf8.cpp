#include "models/tokenizer/utf8.h"

#include <algorithm>

namespace shoal::models {
namespace {

// Characters with the Unicode property White_Space.
constexpr std::string_view kSpaces[] = {" ",      "\t",     "\n",     "\v",     "\f",     "\r",     "\u0085",
                                        "\u00a0", "\u1680", "\u2000", "\u2001", "\u2002", "\u2003", "\u2004",
                                        "\u2005", "\u2006", "\u2007", "\u2008", "\u2009", "\u200a", "\u2028",
                                        "\u2029", "\u202f", "\u205f", "\u3000"};

struct Lead {
  size_t length;                         // bytes of the whole sequence; 0: no sequence starts with this byte
  unsigned char second_min, second_max;  // range of the second byte; later bytes are 80..bf
};

// The table of RFC 3629, section 4.
Lead lead_of(unsigned char byte) {
  if (byte < 0x80) return {1, 0, 0};
  if (byte >= 0xc2 && byte <= 0xdf) return {2, 0x80, 0xbf};
  if (byte == 0xe0) return {3, 0xa0, 0xbf};
  if (byte == 0xed) return {3, 0x80, 0x9f};
  if (byte >= 0xe1 && byte <= 0xef) return {3, 0x80, 0xbf};
  if (byte == 0xf0) return {4, 0x90, 0xbf};
  if (byte >= 0xf1 && byte <= 0xf3) return {4, 0x80, 0xbf};
  if (byte == 0xf4) return {4, 0x80, 0x8f};
  return {0, 0, 0};
}

// Number of bytes at the start of `text` that fit a UTF-8 sequence with the lead byte `lead`. The result is at most
// the length of this sequence.
size_t matching(std::string_view text, const Lead& lead) {
  size_t n = 1;
  for (; n < std::min(lead.length, text.size()); ++n) {
    const auto byte = static_cast<unsigned char>(text[n]);
    const bool fits = n == 1 ? byte >= lead.second_min && byte <= lead.second_max : byte >= 0x80 && byte <= 0xbf;
    if (!fits) break;
  }
  return n;
}

}  // namespace

size_t utf8_sequence(std::string_view text) {
  if (text.empty()) return 0;
  const Lead lead = lead_of(static_cast<unsigned char>(text[0]));
  return lead.length > 0 && matching(text, lead) == lead.length ? lead.length : 0;
}

size_t white_space(std::string_view text) {
  size_t length = 0;
  for (bool found = true; found;) {
    const std::string_view rest = text.substr(length);
    const auto* space = std::find_if(std::begin(kSpaces), std::end(kSpaces),
                                     [&](std::string_view one) { return rest.starts_with(one); });
    found = space != std::end(kSpaces);
    if (found) length += space->size();
  }
  return length;
}

size_t utf8_incomplete_tail(std::string_view text) {
  for (size_t n = 1; n <= std::min<size_t>(3, text.size()); ++n) {
    const std::string_view tail = text.substr(text.size() - n);
    const Lead lead = lead_of(static_cast<unsigned char>(tail[0]));
    if (lead.length > n && matching(tail, lead) == n) return n;
  }
  return 0;
}

}  // namespace shoal::models
