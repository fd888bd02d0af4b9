// Tests of the table of dtype traits, and of the conversions of plain types.
#include "graph/dtype.h"

#include <gtest/gtest.h>

#include <bit>
#include <cmath>
#include <limits>
#include <set>
#include <vector>

#include "base/error.h"

namespace shoal {
namespace {

TEST(DType, EveryDTypeIsFoundByNameAndGgufType) {
  std::set<uint32_t> numbers;
  for (int i = 0; i < kDTypeCount; ++i) {
    const DTypeTraits& type = traits(static_cast<DType>(i));
    EXPECT_EQ(static_cast<int>(type.dtype), i);
    EXPECT_TRUE(numbers.insert(type.gguf_type).second) << type.name;
    EXPECT_EQ(type.is_quantized, type.block_elems > 1) << type.name;
    EXPECT_EQ(dtype_from_name(type.name), type.dtype);
    EXPECT_EQ(dtype_from_gguf(type.gguf_type), type.dtype);
  }
}

TEST(DType, NamesIgnoreCaseAndUnknownNamesGiveNullopt) {
  EXPECT_EQ(dtype_from_name("Q4_k"), DType::kQ4_K);
  EXPECT_EQ(dtype_from_name("BF16"), DType::kBF16);
  EXPECT_EQ(dtype_from_name("q4"), std::nullopt);
  EXPECT_EQ(dtype_from_name(""), std::nullopt);
  EXPECT_EQ(dtype_from_gguf(4), std::nullopt);
}

TEST(DType, BytesAreCountedInWholeBlocks) {
  EXPECT_EQ(bytes_for(DType::kQ4_0, 256), 144u);
  EXPECT_EQ(bytes_for(DType::kQ6_K, 512), 420u);
  EXPECT_EQ(bytes_for(DType::kF16, 7), 14u);
  EXPECT_EQ(bytes_for(DType::kQ8_0, 0), 0u);
  EXPECT_THROW(bytes_for(DType::kQ8_0, 33), InvalidArgument);
  EXPECT_THROW(bytes_for(DType::kF32, -1), InvalidArgument);
}

TEST(DType, BytesOfTheLargestCountAreExactOrRefused) {
  for (int i = 0; i < kDTypeCount; ++i) {
    const DTypeTraits& type = traits(static_cast<DType>(i));
    const int64_t blocks = INT64_MAX / type.block_elems, n = blocks * type.block_elems;
    if (static_cast<long double>(blocks) * static_cast<long double>(type.block_bytes) < 0x1p64L) {
      EXPECT_EQ(bytes_for(type.dtype, n), static_cast<size_t>(blocks) * type.block_bytes) << type.name;
    } else {
      EXPECT_THROW(bytes_for(type.dtype, n), InvalidArgument) << type.name;
    }
  }
}

TEST(Half, EveryHalfRoundTripsThroughF32) {
  for (uint32_t bits = 0; bits < 0x10000; ++bits) {
    const auto half = static_cast<uint16_t>(bits);
    ASSERT_EQ(f32_to_f16(f16_to_f32(half)), half);
    ASSERT_EQ(f32_to_bf16(bf16_to_f32(half)), half);
  }
}

TEST(Half, ConvertsKnownValues) {
  EXPECT_EQ(f16_to_f32(0x3c00), 1.0f);
  EXPECT_EQ(f16_to_f32(0xc500), -5.0f);
  EXPECT_EQ(f16_to_f32(0x7bff), 65504.0f);
  EXPECT_EQ(f16_to_f32(0x0001), 0x1p-24f);
  EXPECT_EQ(f16_to_f32(0x03ff), 1023 * 0x1p-24f);
  EXPECT_EQ(f16_to_f32(0xfc00), -std::numeric_limits<float>::infinity());
  EXPECT_TRUE(std::isnan(f16_to_f32(0x7e00)));
  EXPECT_TRUE(std::signbit(f16_to_f32(0x8000)));
  EXPECT_EQ(bf16_to_f32(0x3f80), 1.0f);
  EXPECT_EQ(bf16_to_f32(0xc0a0), -5.0f);
}

TEST(Half, RoundsToNearestEven) {
  EXPECT_EQ(f32_to_f16(1.0f + 0x1p-11f), 0x3c00);             // a tie rounds down to even
  EXPECT_EQ(f32_to_f16(1.0f + 3 * 0x1p-11f), 0x3c02);         // a tie rounds up to even
  EXPECT_EQ(f32_to_f16(1.0f + 0x1p-11f + 0x1p-20f), 0x3c01);  // the value is just above the tie
  EXPECT_EQ(f32_to_f16(65519.996f), 0x7bff);
  EXPECT_EQ(f32_to_f16(65520.0f), 0x7c00);
  EXPECT_EQ(f32_to_f16(0x1p-25f), 0x0000);  // a tie among subnormals
  EXPECT_EQ(f32_to_f16(0x1.8p-24f), 0x0002);
  EXPECT_EQ(f32_to_f16(0x1.000002p-25f), 0x0001);
  EXPECT_EQ(f32_to_f16(0x1.ffep-15f), 0x0400);  // rounds up to the smallest normal number
  EXPECT_EQ(f32_to_f16(-1e-30f), 0x8000);
  EXPECT_EQ(f32_to_bf16(1.0f + 0x1p-8f), 0x3f80);
  EXPECT_EQ(f32_to_bf16(1.0f + 3 * 0x1p-8f), 0x3f82);
  EXPECT_EQ(f32_to_bf16(std::numeric_limits<float>::max()), 0x7f80);
}

TEST(Half, NaNWithLongPayloadStaysNaN) {
  const float nan = std::bit_cast<float>(0x7f800001u);
  EXPECT_TRUE(std::isnan(f16_to_f32(f32_to_f16(nan))));
  EXPECT_TRUE(std::isnan(bf16_to_f32(f32_to_bf16(nan))));
}

TEST(Integers, AreConvertedByValueAndClamped) {
  const std::vector<float> x{0.4f, -2.5f, 3.5f, 1e10f, -1e10f, NAN, 1e30f, -1e30f};
  std::vector<int32_t> i32(x.size());
  traits(DType::kI32).from_f32(x.data(), i32.data(), static_cast<int64_t>(x.size()));
  EXPECT_EQ(i32, (std::vector<int32_t>{0, -2, 4, INT32_MAX, INT32_MIN, 0, INT32_MAX, INT32_MIN}));
  std::vector<int64_t> i64(x.size());
  traits(DType::kI64).from_f32(x.data(), i64.data(), static_cast<int64_t>(x.size()));
  EXPECT_EQ(i64, (std::vector<int64_t>{0, -2, 4, 10000000000, -10000000000, 0, INT64_MAX, INT64_MIN}));
  std::vector<float> back(2);
  traits(DType::kI64).to_f32(i64.data() + 3, back.data(), 2);
  EXPECT_EQ(back, (std::vector<float>{1e10f, -1e10f}));
}

}  // namespace
}  // namespace shoal
