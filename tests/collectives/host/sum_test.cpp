// Tests of sums of arrays: offsets, several outputs, and lengths around the block size. Each sum must be rounded only
// once.
#include "collectives/host/sum.h"

#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include <vector>

namespace shoal::collectives::host {
namespace {

using testing::Each;
using testing::ElementsAre;

const std::byte* bytes(const void* data) {
  return static_cast<const std::byte*>(data);
}
std::byte* bytes(void* data) {
  return static_cast<std::byte*>(data);
}

TEST(Sum, AppliesOffsetsAndWritesEveryOutput) {
  const float a[] = {1, 2, 3}, b[] = {10, 20, 30};
  float x[3] = {}, y[3] = {};
  const std::byte* sources[] = {bytes(a), bytes(b)};
  std::byte* outs[] = {bytes(x), bytes(y)};
  sum(DType::kF32, sources, 1, 2, outs, 0);
  EXPECT_THAT(x, ElementsAre(22, 33, 0));
  EXPECT_THAT(y, ElementsAre(22, 33, 0));
}

TEST(Sum, IsExactForLengthsAroundBlockSize) {
  for (int64_t count : {0, 1, 1023, 1024, 1025, 2048, 5000}) {
    const std::vector<float> a(count + 1, 1.5f), b(count + 1, 2.0f);
    std::vector<float> out(count + 1, -1.0f);
    const std::byte* sources[] = {bytes(a.data()), bytes(b.data())};
    std::byte* const outs[] = {bytes(out.data())};
    sum(DType::kF32, sources, 0, count, outs, 0);
    EXPECT_EQ(out.back(), -1.0f) << "wrote past the end of " << count;
    out.pop_back();
    EXPECT_THAT(out, Each(3.5f));
  }
}

TEST(Sum, WorksInPlace) {
  std::vector<int32_t> a(3000, 1), b(3000, 2);
  const std::byte* sources[] = {bytes(a.data()), bytes(b.data())};
  std::byte* const outs[] = {bytes(a.data()), bytes(b.data())};
  sum(DType::kI32, sources, 0, 3000, outs, 0);
  EXPECT_THAT(a, Each(3));
  EXPECT_THAT(b, Each(3));
}

// The test adds 2048 + 1 + 1. In f16, each addition would round to 2048. In f32 the sum is 2050, which f16 can
// represent.
TEST(Sum, HalfTypesAreAddedInF32AndRoundedOnce) {
  const uint16_t big = f32_to_f16(2048.0f), one = f32_to_f16(1.0f);
  uint16_t out = 0;
  const std::byte* sources[] = {bytes(&big), bytes(&one), bytes(&one)};
  std::byte* const outs[] = {bytes(&out)};
  sum(DType::kF16, sources, 0, 1, outs, 0);
  EXPECT_EQ(f16_to_f32(out), 2050.0f);
}

// In f32, (1e8 + -1e8) + 1 = 1, but 1e8 + (-1e8 + 1) = 0.
TEST(Sum, AddsSourcesInGivenOrder) {
  const float a = 1e8f, b = -1e8f, c = 1.0f;
  float out = -1.0f;
  std::byte* const outs[] = {bytes(&out)};
  const std::byte* forward[] = {bytes(&a), bytes(&b), bytes(&c)};
  sum(DType::kF32, forward, 0, 1, outs, 0);
  EXPECT_EQ(out, 1.0f);
  const std::byte* backward[] = {bytes(&c), bytes(&b), bytes(&a)};
  sum(DType::kF32, backward, 0, 1, outs, 0);
  EXPECT_EQ(out, 0.0f);
}

}  // namespace
}  // namespace shoal::collectives::host
