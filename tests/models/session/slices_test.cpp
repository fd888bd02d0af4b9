#include "models/session/slices.h"

#include <gtest/gtest.h>

#include <cstring>
#include <string>

namespace shoal::models {
namespace {

std::string in_slices(const TensorSpec& spec, int64_t count, int64_t slices, const std::string& from) {
  std::string to(from.size(), '?');
  copy_in_slices(spec, count, slices, std::as_bytes(std::span(from)), std::as_writable_bytes(std::span(to)));
  return to;
}

const Cut kRows{CutGroup::kFeedForward, 1, 1}, kColumns{CutGroup::kFeedForward, 0, 1};

TEST(Slices, RowsOfGateAndUpGoOneAfterTheOther) {
  // Two experts of four rows, a letter each.
  const TensorSpec gate{.name = "gate", .shape = {8, 4, 2, 1}, .cut = kRows, .role = TensorRole::kExperts};
  EXPECT_EQ(in_slices(gate, 2, 2, "abcdefgh"), "abefcdgh");
  EXPECT_EQ(in_slices(gate, 1, 4, "abcd"), "abcd");
}

TEST(Slices, ColumnsOfDownAreCutOutOfRows) {
  const TensorSpec down{.name = "down", .shape = {4, 3, 2, 1}, .cut = kColumns, .role = TensorRole::kExperts};
  EXPECT_EQ(in_slices(down, 2, 2,
                      "abcdefghijkl"
                      "ABCDEFGHIJKL"),
            "abefij"
            "ABEFIJ"
            "cdghkl"
            "CDGHKL");
}

TEST(Slices, GateAndUpInOneMatrixAreCutAlike) {
  Cut both = kRows;
  both.more[0] = {CutGroup::kFeedForward, 1};
  const TensorSpec fused{.name = "gate_up", .shape = {8, 8, 2, 1}, .cut = both, .role = TensorRole::kExperts};
  EXPECT_EQ(in_slices(fused, 2, 2,
                      "abcdABCD"
                      "efghEFGH"),
            "abAB"
            "efEF"
            "cdCD"
            "ghGH");
}

TEST(Slices, BiasesAreRows) {
  const TensorSpec bias{
      .name = "bias", .shape = {4, 2, 1, 1}, .cut = kColumns, .elementwise = true, .role = TensorRole::kExperts};
  EXPECT_EQ(in_slices(bias, 2, 2, "abcdefgh"), "abefcdgh");
}

}  // namespace
}  // namespace shoal::models
