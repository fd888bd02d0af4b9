#include "base/printable.h"

#include <gtest/gtest.h>

namespace shoal {
namespace {

TEST(Printable, EscapesControlCharactersAndInvalidBytes) {
  EXPECT_EQ(escaped("plain \u2581\u00e9 \U0001f600"), "plain \u2581\u00e9 \U0001f600");
  EXPECT_EQ(escaped(std::string_view("a\0b\n\r\t\x1b[2J\x7f", 11)), "a\\x00b\\n\\r\\t\\x1b[2J\\x7f");
  EXPECT_EQ(escaped("\xc2\x9b\xc2\xa0\xc2"), "\\u009b\xc2\xa0\\xc2");
  EXPECT_EQ(escaped("\xff\xc0\x80\xed\xa0\x80\xf5"), "\\xff\\xc0\\x80\\xed\\xa0\\x80\\xf5") << "overlong, surrogate";
}

TEST(Printable, EscapesBidiAndInvisibleCharacters) {
  for (const auto& [text, shown] : {std::pair("\u202e", "\\u202e"),
                                    {"\u202a", "\\u202a"},
                                    {"\u2066", "\\u2066"},
                                    {"\u2069", "\\u2069"},
                                    {"\u200e", "\\u200e"},
                                    {"\u200f", "\\u200f"},
                                    {"\u061c", "\\u061c"},
                                    {"\u2028", "\\u2028"},
                                    {"\ufeff", "\\ufeff"},
                                    {"\U000e0041", "\\ue0041"}}) {
    EXPECT_EQ(escaped(std::string("a") + text + "b"), std::string("a") + shown + "b");
  }
  EXPECT_EQ(escaped("\u0645\u06cc\u200c\u062e\u0648\u0627\u0647\u0645"),
            "\u0645\u06cc\u200c\u062e\u0648\u0627\u0647\u0645")
      << "a zero-width non-joiner inside a word is not escaped";
}

TEST(Printable, TruncatesLongTextAndCountsOmittedCharacters) {
  EXPECT_EQ(printable("abc", 3), "abc");
  EXPECT_EQ(printable("abcd", 3), "abc... (omitted characters: 1)");
  EXPECT_EQ(printable("\u00e9\n\u00e9\u00e9\u00e9", 2), "\u00e9\\n... (omitted characters: 3)");
  EXPECT_EQ(printable(std::string(1'000'000, 'x')), std::string(200, 'x') + "... (omitted characters: 999800)");
}

}  // namespace
}  // namespace shoal
