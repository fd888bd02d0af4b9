// Tests of the coded types. Decoded blocks equal the output of the Python package `gguf` bit for bit
// (coded_vectors.py). Encoding does not change values that are in the codebook.
#include <gtest/gtest.h>

#include <bit>
#include <cmath>
#include <random>
#include <set>
#include <vector>

#include "graph/dtype.h"
#include "graph/quants/grids.h"
#include "tests/support/encoders.h"

namespace shoal {
namespace {

constexpr int64_t kBlocks = 64;

struct Vector {
  DType dtype;
  int high_byte;  ///< index of the high byte of a block's f16 scale
  uint64_t hash;
  std::vector<float> some;
};
const Vector kVectors[] = {
#include "tests/graph/coded_vectors.inc"
};

/// Generates the same bytes as coded_vectors.py.
std::vector<uint8_t> random_blocks(const DTypeTraits& type, int high_byte) {
  std::vector<uint8_t> bytes(kBlocks * type.block_bytes);
  uint64_t state = 12345;
  for (uint8_t& byte : bytes) {
    state = (state * 1103515245 + 12345) % (uint64_t{1} << 31);
    byte = static_cast<uint8_t>(state >> 16);
  }
  for (int64_t b = 0; b < kBlocks && high_byte >= 0; ++b) bytes[b * type.block_bytes + high_byte] &= 0xbf;
  return bytes;
}

uint64_t hash_of(const std::vector<float>& values) {
  uint64_t hash = 0xcbf29ce484222325u;
  for (const float value : values) {
    const auto bits = std::bit_cast<uint32_t>(value + 0.0f);  // the addition turns -0 into 0
    for (int i = 0; i < 4; ++i) hash = (hash ^ (bits >> 8 * i & 255)) * 0x100000001b3u;
  }
  return hash;
}

std::vector<float> decoded(const DTypeTraits& type, const std::vector<uint8_t>& bytes) {
  const auto blocks = static_cast<int64_t>(bytes.size() / type.block_bytes);
  std::vector<float> values(blocks * type.block_elems);
  type.to_f32(bytes.data(), values.data(), static_cast<int64_t>(values.size()));
  return values;
}

std::set<DType> coded_types() {
  std::set<DType> types;
  for (int i = 0; i < kDTypeCount; ++i) {
    if (traits(static_cast<DType>(i)).is_coded) types.insert(static_cast<DType>(i));
  }
  return types;
}

TEST(Coded, DecodedValuesMatchValuesOfGgufPackage) {
  std::set<DType> tested;
  for (const Vector& vector : kVectors) {
    const DTypeTraits& type = traits(vector.dtype);
    SCOPED_TRACE(type.name);
    tested.insert(vector.dtype);
    const std::vector<float> values = decoded(type, random_blocks(type, vector.high_byte));
    for (size_t i = 0; i < vector.some.size(); ++i) EXPECT_EQ(values[41 * i], vector.some[i]) << "element " << 41 * i;
    EXPECT_EQ(hash_of(values), vector.hash);
  }
  for (const DType dtype : coded_types()) {
    EXPECT_TRUE(tested.contains(dtype)) << name_of(dtype) << " has no vectors (coded_vectors.py)";
  }
}

TEST(Coded, DecodesEveryNvfp4Scale) {
  // If the scale of a block is 0x7f (NaN), all values of the block are 0. The decoder ignores the sign bit of scales.
  const DTypeTraits& type = traits(DType::kNVFP4);
  for (int bits = 0; bits < 256; ++bits) {
    std::vector<uint8_t> block(type.block_bytes, static_cast<uint8_t>(bits));
    std::fill(block.begin() + 4, block.end(), 0x2a);  // levels 2 and -2
    const int exponent = bits >> 3 & 15, mantissa = bits & 7;
    double scale = exponent == 0 ? std::ldexp(mantissa, -9) : std::ldexp(8 + mantissa, exponent - 10);
    if (bits == 0x7f) scale = 0;
    for (int i = 0; const float value : decoded(type, block)) {
      EXPECT_EQ(value, (i++ % 16 < 8 ? -1 : 1) * scale) << bits;
    }
  }
}

/// Encoding does not change values that a block can represent exactly.
TEST(Coded, DecodedBlocksEncodeToTheSameValues) {
  for (const DType dtype : coded_types()) {
    const DTypeTraits& type = traits(dtype);
    SCOPED_TRACE(type.name);
    std::mt19937 engine(5);
    std::normal_distribution<float> normal;
    std::vector<float> x(type.block_elems * 40);
    for (float& value : x) value = normal(engine);
    std::vector<uint8_t> once(bytes_for(dtype, static_cast<int64_t>(x.size()))), twice(once.size());
    test::from_f32(dtype, x.data(), once.data(), static_cast<int64_t>(x.size()));
    const std::vector<float> values = decoded(type, once);
    test::from_f32(dtype, values.data(), twice.data(), static_cast<int64_t>(x.size()));
    EXPECT_EQ(decoded(type, twice), values);
  }
}

TEST(Coded, CodebookEntriesAreDistinct) {
  const auto expect_different = [](const auto& grid) {
    const std::set<uint64_t> entries(std::begin(grid.entries), std::end(grid.entries));
    EXPECT_EQ(entries.size(), std::size(grid.entries));
  };
  expect_different(quants::kGridIQ2_XXS);
  expect_different(quants::kGridIQ2_XS);
  expect_different(quants::kGridIQ2_S);
  expect_different(quants::kGridIQ3_XXS);
  expect_different(quants::kGridIQ3_S);
  expect_different(quants::kGridIQ1_S);
}

}  // namespace
}  // namespace shoal
