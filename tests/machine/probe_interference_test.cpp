// What disturbs a probe, told from figures as they were measured: no clock, no other programs.
#include "machine/probe_interference.h"

#include <gtest/gtest.h>

#include <array>

namespace shoal::machine {
namespace {

constexpr std::string_view kStat =
    "cpu  91144 65 9872 19306 471 0 81 145 0 0\n"
    "cpu0 45302 32 4692 10299 77 5 7 74 0 0\n"
    "cpu1 45651 28 5169 9007 394 0 73 70 0 0\n"
    "cpu10 1 1 1 1 1 1 1 1 1 1\n"
    "intr 405275 0 0\n";

TEST(ProbeInterference, CountsWhatKeepsTheseThreadsBusy) {
  // user + nice + system + irq + softirq + steal, in ticks of 10 ms
  EXPECT_DOUBLE_EQ(busy_seconds(kStat, std::array{0}, 100).value(), 501.12);
  EXPECT_DOUBLE_EQ(busy_seconds(kStat, std::array{1}, 100).value(), 509.91);
  EXPECT_DOUBLE_EQ(busy_seconds(kStat, std::array{1, 0}, 100).value(), 1011.03);
  EXPECT_DOUBLE_EQ(busy_seconds(kStat, std::array{10}, 1).value(), 6);
}

TEST(ProbeInterference, SaysNothingOfWhatTheSystemDoesNotTell) {
  EXPECT_FALSE(busy_seconds(kStat, std::array{0, 2}, 100));
  EXPECT_FALSE(busy_seconds("", std::array{0}, 100));
  EXPECT_FALSE(busy_seconds(kStat, {}, 100));
}

TEST(ProbeInterference, AMachineAtRestHasServices) {
  EXPECT_FALSE((Stretch{1, 0}).is_disturbed());
  EXPECT_FALSE((Stretch{1, 0.1}).is_disturbed());
  EXPECT_TRUE((Stretch{1, 0.5}).is_disturbed());
  EXPECT_FALSE((Stretch{0.02, 0.02}).is_disturbed()) << "a tick or two of the system's clock";
  EXPECT_TRUE((Stretch{0.5, 0.5}).is_disturbed());
  EXPECT_DOUBLE_EQ((Stretch{2, 3}).cores(), 1.5);
  EXPECT_DOUBLE_EQ((Stretch{2, -0.01}).cores(), 0) << "two clocks that are read one after the other";
  EXPECT_DOUBLE_EQ((Stretch{0, 0}).cores(), 0);
}

TEST(ProbeInterference, TheClockTakesWhatCameBetween) {
  double used = 100;
  const std::function<double()> others = [&] { return used; };
  const StretchClock clock(others);
  used += 2.5;
  const Stretch stretch = clock.stop();
  EXPECT_DOUBLE_EQ(stretch.others, 2.5);
  EXPECT_GE(stretch.seconds, 0);
}

TEST(ProbeInterference, TwinsAreComparedByTheirQuickestRounds) {
  EXPECT_EQ(compare_twins(std::array{TwinRound{10e-3, 11e-3}}), Likeness::kAlike);
  // Something ran beside the second one at first, then beside the first one.
  EXPECT_EQ(compare_twins(std::array{TwinRound{10e-3, 19e-3}, TwinRound{21e-3, 10.4e-3}}), Likeness::kAlike);
  EXPECT_EQ(compare_twins(std::array{TwinRound{10e-3, 19e-3, true}, TwinRound{10.1e-3, 10.3e-3, true}}),
            Likeness::kAlike);
}

TEST(ProbeInterference, TwinsDifferWhereEveryQuietRoundSaysSo) {
  const std::array quiet{TwinRound{10e-3, 19e-3}, TwinRound{10.2e-3, 19.1e-3}, TwinRound{10.1e-3, 18.8e-3}};
  EXPECT_EQ(compare_twins(quiet), Likeness::kDifferent);
  std::array other_way = quiet;
  for (TwinRound& round : other_way) std::swap(round.one, round.other);
  EXPECT_EQ(compare_twins(other_way), Likeness::kDifferent);
}

TEST(ProbeInterference, TwinsInNoiseAreNotToldApart) {
  std::array rounds{TwinRound{10e-3, 19e-3}, TwinRound{10.2e-3, 19.1e-3, true}, TwinRound{10.1e-3, 18.8e-3}};
  EXPECT_EQ(compare_twins(rounds), Likeness::kUncertain) << "another program may be what slows the second one";
  rounds[1] = {10.2e-3, 38e-3};
  EXPECT_EQ(compare_twins(rounds), Likeness::kUncertain) << "the rounds disagree";
}

}  // namespace
}  // namespace shoal::machine
