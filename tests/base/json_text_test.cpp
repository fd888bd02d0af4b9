#include "base/json_text.h"

#include <gmock/gmock.h>

#include <cstdlib>

#include "collectives/thresholds.h"
#include "tests/support/temporary.h"

namespace shoal {
namespace {

using testing::HasSubstr;
using testing::ThrowsMessage;

std::string nested(int levels) {
  std::string text;
  for (int i = 0; i < levels; ++i) text += i % 2 == 0 ? "[" : R"({"a": )";
  text += "1";
  for (int i = levels; i > 0; --i) text += i % 2 == 0 ? "}" : "]";
  return text;
}

TEST(JsonText, LimitsNestingDepth) {
  EXPECT_EQ(parse_json(nested(kDeepestJson)), nlohmann::json::parse(nested(kDeepestJson)));
  for (const int levels : {kDeepestJson + 1, 400'000}) {
    const auto refused = ThrowsMessage<InvalidArgument>("lists and objects are nested more than 16 deep");
    EXPECT_THAT([&] { parse_json(nested(levels)); }, refused) << levels;
    EXPECT_THAT([&] { parse_json<nlohmann::ordered_json>(nested(levels)); }, refused) << levels;
    EXPECT_TRUE(parse_json_or_nothing(nested(levels)).is_discarded()) << levels;
  }
}

TEST(JsonText, InvalidJsonThrowsOrGivesDiscardedValue) {
  for (const char* text : {"", "{", "[1 2]", "{\"a\": 1e400}", "\"\xff\""}) {
    EXPECT_THROW(parse_json(text), nlohmann::json::exception) << text;
    EXPECT_TRUE(parse_json_or_nothing(text).is_discarded()) << text;
  }
  EXPECT_EQ(parse_json_or_nothing("[1, 2]"), nlohmann::json({1, 2}));
}

TEST(JsonText, TooDeeplyNestedThresholdsFileCountsAsEmpty) {
  const test::TemporaryFile file("deep.json", R"({"version": 1, "meshes": {"": )" + nested(400'000) + "}}");
  setenv("SHOAL_COMM_THRESHOLDS", file.path.c_str(), 1);
  EXPECT_EQ(collectives::find_thresholds({}), std::nullopt);
  collectives::save_thresholds({}, {4096});
  EXPECT_EQ(collectives::find_thresholds({}), collectives::Thresholds{4096});
  unsetenv("SHOAL_COMM_THRESHOLDS");
}

}  // namespace
}  // namespace shoal
