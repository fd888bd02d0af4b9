// Tests the order of verdicts, which all searches use.
#include <gtest/gtest.h>

#include "tuning/choose/chooser.h"

namespace shoal::tuning {
namespace {

/// A verdict with one device, which has 100 bytes of memory and needs `lacking` bytes more. The predicted generation
/// takes `seconds`.
Verdict verdict(size_t lacking, double seconds) {
  models::DeviceUse use;
  use.use.weights = 100 + lacking;
  use.memory = {.free = 100, .total = 100};
  Verdict one;
  one.memory = {use};
  one.fits = lacking == 0;
  one.generation.emplace().seconds = seconds;
  return one;
}

bool is_better(const Verdict& one, const Verdict& other, double gain = 0) {
  return tuning::is_better(one, other, Objective::kGeneration, gain);
}

TEST(Verdicts, MissingMemoryOutweighsTime) {
  EXPECT_TRUE(is_better(verdict(0, 9), verdict(1, 1)));
  EXPECT_FALSE(is_better(verdict(1, 1), verdict(0, 9)));
  EXPECT_TRUE(is_better(verdict(1, 9), verdict(2, 1)));
  EXPECT_FALSE(is_better(verdict(2, 1), verdict(1, 9)));
  EXPECT_TRUE(is_better(verdict(2, 1), verdict(2, 9)));
}

TEST(Verdicts, VerdictIsNotBetterIfGainIsBelowThreshold) {
  EXPECT_TRUE(is_better(verdict(0, 1), verdict(0, 2)));
  EXPECT_FALSE(is_better(verdict(0, 1), verdict(0, 1)));
  EXPECT_FALSE(is_better(verdict(0, 0.999), verdict(0, 1), 0.01));
  EXPECT_TRUE(is_better(verdict(0, 0.98), verdict(0, 1), 0.01));
}

}  // namespace
}  // namespace shoal::tuning
