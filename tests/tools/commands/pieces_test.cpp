// Tests of functions that need no separate process: parsers of flags, tables, and the normalised error.
#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include <cerrno>
#include <cmath>
#include <limits>
#include <new>
#include <system_error>

#include "base/error.h"
#include "tools/cli/device_names.h"
#include "tools/cli/options.h"
#include "tools/cli/output.h"
#include "tools/cli/program.h"
#include "tools/cli/threads.h"
#include "tools/report/comparison.h"

namespace shoal::tools {
namespace {

using ::testing::ElementsAre;
using ::testing::HasSubstr;
using ::testing::Not;

TEST(ParseIds, ReadsNumbersBetweenCommas) {
  EXPECT_THAT(parse_ids("--ids", "1,527,0"), ElementsAre(1, 527, 0));
  EXPECT_THAT(parse_ids("--ids", " 1, 527 ,0"), ElementsAre(1, 527, 0));
  EXPECT_THAT(parse_ids("--ids", ""), ElementsAre());
  EXPECT_THAT(parse_ids("--ids", " "), ElementsAre());
  for (const char* text : {",", "1,,2", "1,", "-1", "1 2", "99999999999", "0x1"}) {
    EXPECT_THROW(parse_ids("--ids", text), InvalidArgument) << text;
  }
}

TEST(ParseNumber, AcceptsDecimalNumbersInRange) {
  EXPECT_EQ(parse_number("--x", "0.25", 0, 1), 0.25);
  EXPECT_EQ(parse_number("--x", "1e-3", 0, 1), 1e-3);
  for (const char* text : {"", "nan", "inf", "-0.1", "1.1", "0x1", "1 ", "+1", "1e999", "1,5"}) {
    EXPECT_THROW(parse_number("--x", text, 0, 1), InvalidArgument) << text;
  }
}

TEST(ParseSeed, AcceptsAnyUnsigned64BitNumber) {
  EXPECT_EQ(parse_seed("--seed", "18446744073709551615"), std::numeric_limits<uint64_t>::max());
  EXPECT_EQ(parse_seed("--seed", "010"), 10u);
  for (const char* text : {"", "-1", "18446744073709551616", "0x10", "1.0"}) {
    EXPECT_THROW(parse_seed("--seed", text), InvalidArgument) << text;
  }
}

TEST(DeviceNames, TrimsNamesAndRejectsDuplicates) {
  EXPECT_THAT(split_device_names("CPU0, cpu1 ,CPU2"), ElementsAre("CPU0", "cpu1", "CPU2"));
  for (const char* text : {"", ",", "CPU0,", "CPU0,,CPU1", "CPU0, CPU0", "CPU0,cpu0"}) {
    EXPECT_THROW(split_device_names(text), InvalidArgument) << text;
  }
}

/// The message that the program prints for an exception.
template <class E>
std::string described(const E& error) {
  try {
    throw error;
  } catch (...) {
    return describe_current();
  }
}

TEST(DescribeCurrent, AddsARemedyToSystemErrors) {
  EXPECT_THAT(described(std::bad_alloc()), HasSubstr("out of memory; use a smaller context (-c)"));
  EXPECT_THAT(described(std::system_error(EAGAIN, std::generic_category())),
              HasSubstr("cannot start a thread; use fewer devices or threads (-t)"));
  EXPECT_THAT(described(std::system_error(EIO, std::generic_category())), Not(HasSubstr("thread")));
  EXPECT_EQ(described(InvalidArgument("as it is")), "as it is");
  EXPECT_NE(described(7), "");
}

TEST(RequireThreads, AcceptsZeroAndFiftyThreads) {
  EXPECT_NO_THROW(require_threads(0));
  EXPECT_NO_THROW(require_threads(50));
}

TEST(Table, AlignsWordsLeftAndNumbersRight) {
  EXPECT_EQ(format_table({{"name", "n", "kind"}, {"a", "5", "x"}, {"bcdef", "10", "y"}}),
            "name    n  kind\n"
            "a       5  x\n"
            "bcdef  10  y\n");
}

TEST(NormalisedError, IsZeroForEqualValuesAndOneForZeros) {
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
