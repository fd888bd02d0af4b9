// Tests stop strings. No part of a stop string is ever returned. The division of the text into chunks does not change
// the result.
#include "models/session/stop_text.h"

#include <gtest/gtest.h>

#include <random>

#include "base/error.h"

namespace shoal::models {
namespace {

TEST(StopText, HoldsBackPossibleStartOfStopString) {
  StopText text({"\n\n", "User:"});
  EXPECT_EQ(text.push("Yes.\nUs"), "Yes.\n");
  EXPECT_EQ(text.push("ers"), "Users");
  EXPECT_EQ(text.push("\n"), "");
  EXPECT_EQ(text.push(" UUser"), "\n U");
  EXPECT_EQ(text.push(":x"), "");
  EXPECT_TRUE(text.found());
  EXPECT_EQ(text.push("more"), "");
  EXPECT_EQ(text.finish(), "");
}

TEST(StopText, FinishReturnsHeldText) {
  StopText text({"abc"});
  EXPECT_EQ(text.push("xab"), "x");
  EXPECT_EQ(text.finish(), "ab");
  EXPECT_FALSE(text.found());
}

TEST(StopText, ReturnsAllTextWithoutStopStrings) {
  StopText text({});
  EXPECT_EQ(text.push("abc"), "abc");
  EXPECT_THROW(StopText({"a", ""}), InvalidArgument);
}

TEST(StopText, TextInAnyPiecesEndsBeforeFirstStopString) {
  std::mt19937 random(3);
  const auto word = [&](size_t most) {
    std::string out(1 + random() % most, 'a');
    for (char& c : out) c = static_cast<char>('a' + random() % 2);
    return out;
  };
  for (int round = 0; round < 2000; ++round) {
    const std::vector<std::string> stops{word(6), word(6), word(6)};
    const std::string whole = word(30);
    // By definition, the text ends at the first position at which a stop string is complete. If several stop strings
    // are complete at this position, the longest one is removed.
    std::string expected = whole;
    for (size_t end = 1; end <= whole.size() && expected.size() == whole.size(); ++end) {
      for (const std::string& stop : stops) {
        if (whole.substr(0, end).ends_with(stop))
          expected = whole.substr(0, std::min(expected.size(), end - stop.size()));
      }
    }
    StopText text(stops);
    std::string shown;
    for (size_t at = 0; at < whole.size();) {
      const size_t size = 1 + random() % 4;
      shown += text.push(std::string_view(whole).substr(at, size));
      at += size;
    }
    EXPECT_EQ(shown + text.finish(), expected) << whole << " " << stops[0] << " " << stops[1] << " " << stops[2];
    EXPECT_EQ(text.found(), expected != whole);
  }
}

}  // namespace
}  // namespace shoal::models
