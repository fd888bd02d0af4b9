#include "base/text.h"

#include <gmock/gmock.h>

#include "base/error.h"
#include "devices/device.h"

namespace shoal {
namespace {

using testing::HasSubstr;
using testing::ThrowsMessage;

TEST(Params, ParsesPairsInOrder) {
  const auto pairs = parse_params("a=1,b=,c=x=y");
  ASSERT_EQ(pairs.size(), 3U);
  EXPECT_EQ(pairs[0], (std::pair<std::string, std::string>("a", "1")));
  EXPECT_EQ(pairs[1].second, "");
  EXPECT_EQ(pairs[2].second, "x=y");
  EXPECT_TRUE(parse_params("").empty());
  EXPECT_EQ(parse_params("devices=CPU0,CPU1 split=3,1", ' ')[0].second, "CPU0,CPU1");
  EXPECT_THROW(parse_params("a=1,b"), InvalidArgument);
  EXPECT_THROW(parse_params("=1"), InvalidArgument);
}

TEST(Params, ParsesAndFormatsByteCounts) {
  EXPECT_EQ(parse_bytes("0"), 0U);
  EXPECT_EQ(parse_bytes("1000"), 1000U);
  EXPECT_EQ(parse_bytes("3k"), 3072U);
  EXPECT_EQ(parse_bytes("2G"), size_t{2} << 30);
  for (const char* bad : {"", "K", "-1", "1.5M", "1MB", "99999999999T", "18446744073709551616"}) {
    EXPECT_THROW(parse_bytes(bad), InvalidArgument) << bad;
  }
  EXPECT_EQ(format_bytes(0), "0 B");
  EXPECT_EQ(format_bytes(1023), "1023 B");
  EXPECT_EQ(format_bytes(1536), "1.5 KiB");
  EXPECT_EQ(format_bytes(size_t{16} << 30), "16.0 GiB");
}

TEST(Params, RefusesInvalidValuesAndUnknownKeys) {
  const Params params("CPU0", "threads=4,memory=1M", {"threads", "memory", "node"});
  EXPECT_EQ(params.integer("threads", 1, 1, 8), 4);
  EXPECT_EQ(params.integer("node", -1, -1, 8), -1);
  EXPECT_EQ(params.bytes("memory", 0), size_t{1} << 20);
  EXPECT_EQ(params.text("node", "none"), "none");
  EXPECT_TRUE(params.has("memory"));
  EXPECT_FALSE(params.has("node"));
  EXPECT_THAT(
      [&] { params.integer("threads", 1, 1, 3); },
      ThrowsMessage<InvalidArgument>(HasSubstr("CPU0: parameter 'threads' must be a whole number from 1 to 3")));
  EXPECT_THAT(
      [] {
        Params("CPU0", "thread=4", {"threads", "node"});
      },
      ThrowsMessage<InvalidArgument>(HasSubstr("unknown parameter 'thread'; known: threads, node")));
  EXPECT_THAT([] { Params("CPU0", "threads=4,threads=5", {"threads"}); },
              ThrowsMessage<InvalidArgument>(HasSubstr("given twice")));
}

}  // namespace
}  // namespace shoal
