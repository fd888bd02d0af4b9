// The parts of the program that need no process: flags, tables, the progress bar, the error measure.
#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include <cmath>
#include <limits>

#include "graph/error.h"
#include "tools/comparison.h"
#include "tools/flags.h"
#include "tools/output.h"
#include "tools/progress.h"

namespace shoal::tools {
namespace {

using ::testing::ElementsAre;

TEST(ParseIds, ReadsNumbersBetweenCommas) {
  EXPECT_THAT(parse_ids("--ids", "1,527,0"), ElementsAre(1, 527, 0));
  for (const char* text : {"", "1,,2", "1,", "-1", "1 2", "99999999999", "0x1"}) {
    EXPECT_THROW(parse_ids("--ids", text), InvalidArgument) << text;
  }
}

TEST(Progress, ShowsABarAPercentageAndBytes) {
  EXPECT_EQ(ProgressBar::line("loading", 1 << 20, 4 << 20, 8), "loading  [##......]  25%  1.0 MiB of 4.0 MiB");
  EXPECT_EQ(ProgressBar::line("loading", 0, 0, 4), "loading  [####] 100%  0 B of 0 B");
}

TEST(Table, AlignsWordsLeftAndNumbersRight) {
  EXPECT_EQ(format_table({{"name", "n", "kind"}, {"a", "5", "x"}, {"bcdef", "10", "y"}}),
            "name    n  kind\n"
            "a       5  x\n"
            "bcdef  10  y\n");
}

TEST(NormalisedError, IsZeroForEqualAndOneForNothing) {
  std::vector<float> a{3, 4}, zero{0, 0}, half{3, 3};
  EXPECT_EQ(normalised_error(a, a), 0.0);
  EXPECT_EQ(normalised_error(a, zero), 1.0);
  EXPECT_DOUBLE_EQ(normalised_error(a, half), 1.0 / 25.0);
  EXPECT_TRUE(std::isinf(normalised_error(zero, a)));
  std::vector<float> nan{std::numeric_limits<float>::quiet_NaN(), 0};
  EXPECT_TRUE(std::isinf(normalised_error(a, nan)));
}

}  // namespace
}  // namespace shoal::tools
