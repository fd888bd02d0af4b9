// Tests of every quantised type. Decoded values equal the output of an independent implementation, the Python package
// `gguf`. The error of encoding is bounded.
#include <gtest/gtest.h>

#include <cmath>
#include <cstring>
#include <random>
#include <set>
#include <vector>

#include "graph/dtype.h"
#include "tests/support/encoders.h"

namespace shoal {
namespace {

/// One block. Its byte i is (151 i + 29 (i / 7) + 83) mod 256. At the offsets `halves`, the block contains the f16
/// numbers 0.0325 and 0.11 instead. `values` contains the block's elements 0, step, 2 step, ... The scale of mxfp4 is
/// one of the computed bytes.
struct Golden {
  DType dtype;
  std::vector<size_t> halves;
  int64_t step;
  std::vector<float> values;
};

const Golden kGolden[] = {
    {DType::kQ4_0,
     {0},
     3,
     {-0.227508545f, -0.0650024414f, 0.0f, 0.162506104f, 0.227508545f, -0.130004883f, 0.0650024414f, 0.0325012207f,
      -0.0975036621f, -0.227508545f, 0.227508545f}},
    {DType::kQ4_1,
     {0, 2},
     3,
     {0.597503662f, 0.142486572f, 0.304992676f, 0.467498779f, 0.532501221f, 0.174987793f, 0.532501221f, 0.467498779f,
      0.369995117f, 0.304992676f, 0.174987793f}},
    {DType::kQ5_0,
     {0},
     3,
     {0.422515869f, -0.0325012207f, -0.390014648f, -0.325012207f, 0.357513428f, -0.0975036621f, 0.0650024414f,
      0.45501709f, -0.130004883f, -0.227508545f, 0.162506104f}},
    {DType::kQ5_1,
     {0, 2},
     3,
     {0.890014648f, 1.05252075f, 0.597503662f, 0.760009766f, 0.402496338f, 0.467498779f, 0.792510986f, 0.142486572f,
      1.11752319f, 0.5f, 0.434997559f}},
    {DType::kQ8_0,
     {0},
     3,
     {-4.12765503f, 2.27508545f, 1.30004883f, -0.617523193f, -1.59255981f, -3.51013184f, 2.89260864f, 1.91757202f, 0.0f,
      -0.975036621f, -2.89260864f}},
    {DType::kQ2_K,
     {80, 82},
     19,
     {-0.452423096f, -1.21478271f, -0.847381592f, -0.109985352f, -1.09985352f, 0.145080566f, -0.892364502f,
      0.0400390625f, -0.722320557f, -0.159912109f, -1.11727905f, 0.605041504f, 0.142730713f, -0.464904785f}},
    {DType::kQ3_K,
     {108},
     19,
     {-0.390014648f, 0.422515869f, 0.812530518f, -1.95007324f, -2.63259888f, 0.520019531f, -1.43005371f, 0.845031738f,
      1.56005859f, -0.0f, 0.390014648f, -2.24258423f, 0.0325012207f, 2.86010742f}},
    {DType::kQ4_K,
     {0, 2},
     19,
     {15.4588318f, 9.34860229f, -4.97900391f, -6.73406982f, 11.7183533f, 7.94821167f, -2.73925781f, 1.46020508f,
      0.290161133f, 2.51321411f, 8.65594482f, 5.11071777f, 3.94116211f, -4.7041626f}},
    {DType::kQ5_K,
     {0, 2},
     19,
     {21.5690613f, 39.8997498f, -4.00396729f, -2.24890137f, -2.41967773f, 11.7183533f, 1.12838745f, 6.14038086f,
      20.1809082f, 6.90087891f, 14.7986755f, 7.15829468f, -5.93920898f, 21.2318115f}},
    {DType::kQ6_K,
     {208},
     19,
     {39.7164917f, -25.9359741f, 3.12011719f, -73.6477661f, 7.02026367f, 38.0264282f, -9.36035156f, -19.3382263f,
      -4.09515381f, -8.87283325f, -2.89260864f, 106.181488f, 13.6505127f, 60.9397888f}},
    {DType::kIQ4_NL, {0}, 1, {-3.380127f,  0.03250122f,  3.672638f,    -0.71502686f, 2.2425842f,  -3.380127f,
                              0.03250122f, 3.672638f,    -0.71502686f, 2.2425842f,   -1.5925598f, 1.2350464f,
                              3.672638f,   -0.71502686f, 2.2425842f,   -1.5925598f,  0.03250122f, -3.380127f,
                              0.8125305f,  -1.5925598f,  2.2425842f,   0.42251587f,  -2.6976013f, 1.2350464f,
                              -1.1375427f, 2.8926086f,   0.03250122f,  -3.380127f,   1.7225647f,  -0.71502686f,
                              3.672638f,   0.42251587f}},
    {DType::kIQ4_XS,
     {0},
     19,
     {-0.03250122f, -2.8926086f, -9.295349f, 46.476746f, -21.125793f, -0.84503174f, -1.3000488f, -42.6091f, -32.72873f,
      37.603912f, -43.94165f, -55.08957f, 36.628876f, 36.628876f}},
    {DType::kMXFP4, {}, 1, {-0x1p-44f, 0x1p-45f, 0,         -0x3p-43f, 0x1p-42f,  -0x3p-44f, 0x1p-45f,  0,
                            -0x3p-43f, 0x1p-42f, -0x3p-44f, 0x1p-43f,  -0x3p-45f, -0x3p-43f, 0x1p-42f,  -0x3p-44f,
                            -0x1p-42f, 0,        0x1p-45f,  -0x1p-44f, 0x1p-43f,  -0x3p-44f, -0x1p-45f, 0x1p-44f,
                            -0x3p-45f, 0x3p-44f, -0x1p-42f, 0,         0x1p-45f,  -0x1p-43f, 0x1p-42f,  -0x3p-43f}},
};

std::set<DType> quantized_types() {
  std::set<DType> types;
  for (int i = 0; i < kDTypeCount; ++i) {
    if (traits(static_cast<DType>(i)).is_quantized) types.insert(static_cast<DType>(i));
  }
  return types;
}

TEST(Quants, DecodesGoldenBlocks) {
  std::set<DType> tested;
  for (const Golden& golden : kGolden) {
    const DTypeTraits& type = traits(golden.dtype);
    tested.insert(golden.dtype);
    std::vector<uint8_t> block(type.block_bytes);
    for (size_t i = 0; i < block.size(); ++i) block[i] = static_cast<uint8_t>(151 * i + 29 * (i / 7) + 83);
    const float factors[] = {0.0325f, 0.11f};
    for (size_t i = 0; i < golden.halves.size(); ++i) {
      const uint16_t half = f32_to_f16(factors[i]);
      std::memcpy(block.data() + golden.halves[i], &half, sizeof half);
    }
    std::vector<float> decoded(type.block_elems);
    type.to_f32(block.data(), decoded.data(), type.block_elems);
    for (size_t i = 0; i < golden.values.size(); ++i) {
      EXPECT_EQ(decoded[i * golden.step], golden.values[i]) << type.name << " element " << i * golden.step;
    }
  }
  for (const DType dtype : quantized_types()) {  // coded_test.cpp tests coded types
    EXPECT_TRUE(traits(dtype).is_coded || tested.contains(dtype)) << name_of(dtype) << " has no block in kGolden";
  }
}

TEST(Quants, DecodesEveryIq4NlLevel) {
  // The block has scale 1 and the nibbles 0 to 15 in order. The `gguf` package gives the same values.
  ASSERT_EQ(dtype_from_gguf(20), DType::kIQ4_NL);
  uint8_t block[18] = {0x00, 0x3c};
  for (int j = 0; j < 16; ++j) block[2 + j] = static_cast<uint8_t>(j | (15 - j) << 4);
  const std::vector<float> levels{-127, -104, -83, -65, -49, -35, -22, -10, 1, 13, 25, 38, 53, 69, 89, 113};
  std::vector<float> decoded(32), expected(levels);
  expected.insert(expected.end(), levels.rbegin(), levels.rend());
  traits(DType::kIQ4_NL).to_f32(block, decoded.data(), 32);
  EXPECT_EQ(decoded, expected);
}

TEST(Quants, DecodesEveryMxfp4Scale) {
  // The expected values are the products of every scale and every level, computed in double. Products outside the range
  // of float become infinite. The `gguf` package gives the same values.
  ASSERT_EQ(dtype_from_gguf(39), DType::kMXFP4);
  const std::vector<float> levels{0, 1, 2, 3, 4, 6, 8, 12, 0, -1, -2, -3, -4, -6, -8, -12};
  for (int scale = 0; scale < 256; ++scale) {
    uint8_t block[17] = {static_cast<uint8_t>(scale)};
    for (int j = 0; j < 16; ++j) block[1 + j] = static_cast<uint8_t>(j | (15 - j) << 4);
    std::vector<float> decoded(32);
    traits(DType::kMXFP4).to_f32(block, decoded.data(), 32);
    for (int j = 0; j < 32; ++j) {
      const double value = std::ldexp(levels[j < 16 ? j : 31 - j], scale - 128);
      EXPECT_EQ(decoded[j], static_cast<float>(value)) << "scale " << scale << ", element " << j;
    }
  }
}

std::vector<float> round_trip(DType dtype, const std::vector<float>& x) {
  const auto n = static_cast<int64_t>(x.size());
  std::vector<std::byte> stored(bytes_for(dtype, n));
  test::from_f32(dtype, x.data(), stored.data(), n);
  std::vector<float> result(x.size());
  traits(dtype).to_f32(stored.data(), result.data(), n);
  return result;
}

std::vector<float> normal_floats(size_t n, float mean = 0.0f) {
  std::mt19937 engine(3);
  std::normal_distribution<float> normal(mean, 1.0f);
  std::vector<float> x(n);
  for (float& v : x) v = normal(engine);
  return x;
}

double root_mean_square(const std::vector<float>& a, const std::vector<float>& b) {
  double sum = 0;
  for (size_t i = 0; i < a.size(); ++i) sum += (static_cast<double>(a[i]) - b[i]) * (static_cast<double>(a[i]) - b[i]);
  return std::sqrt(sum / static_cast<double>(a.size()));
}

TEST(Quants, RoundTripErrorOfNormalValuesIsBounded) {
  // Upper bounds of the root mean square error for values of variance 1. Measured errors are 2 to 5 % below these
  // bounds.
  const std::pair<DType, double> bounds[] = {
      {DType::kQ4_0, 0.084},  {DType::kQ4_1, 0.081},   {DType::kQ5_0, 0.042},   {DType::kQ5_1, 0.039},
      {DType::kQ8_0, 0.0056}, {DType::kQ2_K, 0.275},   {DType::kQ3_K, 0.148},   {DType::kQ4_K, 0.073},
      {DType::kQ5_K, 0.037},  {DType::kQ6_K, 0.018},   {DType::kIQ4_NL, 0.083}, {DType::kIQ4_XS, 0.085},
      {DType::kMXFP4, 0.115}, {DType::kIQ2_XXS, 0.35}, {DType::kIQ2_XS, 0.31},  {DType::kIQ3_XXS, 0.195},
      {DType::kIQ1_S, 0.49},  {DType::kIQ3_S, 0.144},  {DType::kIQ2_S, 0.258},  {DType::kIQ1_M, 0.455},
      {DType::kTQ1_0, 0.445}, {DType::kTQ2_0, 0.445},  {DType::kNVFP4, 0.085},  {DType::kQ1_0, 0.615},
      {DType::kQ2_0, 0.363}};
  const auto x = normal_floats(256 * 200);
  std::set<DType> tested;
  for (const auto& [dtype, bound] : bounds) {
    tested.insert(dtype);
    const double error = root_mean_square(x, round_trip(dtype, x));
    EXPECT_LT(error, bound) << name_of(dtype);
    EXPECT_GT(error, bound / 2) << name_of(dtype) << ": the error is lower than possible";
  }
  for (const DType dtype : quantized_types()) EXPECT_TRUE(tested.contains(dtype)) << name_of(dtype) << " has no bound";
}

TEST(Quants, NonzeroMeanAddsLittleErrorToTypesWithMinima) {
  // A block of a type with minima stores the minimum of its elements. So the levels of the block only cover the range
  // from the minimum to the maximum. K types cannot store positive minima, so the mean of the values is negative.
  for (const DType dtype : {DType::kQ4_1, DType::kQ5_1, DType::kQ2_K, DType::kQ4_K, DType::kQ5_K}) {
    const auto x = normal_floats(256 * 50, -4.0f), plain = normal_floats(256 * 50);
    const double error = root_mean_square(x, round_trip(dtype, x));
    EXPECT_LT(error, 1.3 * root_mean_square(plain, round_trip(dtype, plain))) << name_of(dtype);
  }
}

TEST(Quants, EncodingTwiceAddsLittleError) {
  const auto x = normal_floats(256 * 20);
  for (int i = 0; i < kDTypeCount; ++i) {
    const auto dtype = static_cast<DType>(i);
    if (!traits(dtype).is_quantized) continue;
    const auto once = round_trip(dtype, x);
    EXPECT_LT(root_mean_square(once, round_trip(dtype, once)), 0.2 * root_mean_square(x, once)) << name_of(dtype);
  }
}

TEST(Quants, RampUsingAllLevelsRoundTrips) {
  // The ramp uses every level of a block, so a misplaced bit causes a large error.
  for (int i = 0; i < kDTypeCount; ++i) {
    const auto dtype = static_cast<DType>(i);
    if (!traits(dtype).is_quantized) continue;
    std::vector<float> x(256);
    for (int e = 0; e < 256; ++e) x[e] = static_cast<float>((e * 37) % 64 - 32) * (1.0f + static_cast<float>(e / 32));
    const auto y = round_trip(dtype, x);
    for (int e = 0; e < 256; ++e) {
      const float extreme = 32.0f * (1.0f + static_cast<float>(e / 32));
      if (traits(dtype).is_coded && dtype != DType::kNVFP4) continue;  // these dtypes have too few levels or a single
                                                                       // scale
      const bool coarse = dtype == DType::kQ2_K || dtype == DType::kQ3_K;
      const float step = coarse                   ? 0.5f
                         : dtype == DType::kMXFP4 ? 0.25f
                         : dtype == DType::kNVFP4 ? 0.17f
                                                  : 0.15f;  // the value for mxfp4 is (12 - 8) / 2 / 8: half the
                                                            // distance between levels 8 and 12, relative to 8
      ASSERT_NEAR(y[e], x[e], extreme * step) << name_of(dtype) << " element " << e;
    }
  }
}

TEST(Quants, ZerosStayZeros) {
  const std::vector<float> zeros(512);
  for (int i = 0; i < kDTypeCount; ++i) {
    const auto dtype = static_cast<DType>(i);
    for (const float v : round_trip(dtype, zeros)) ASSERT_EQ(v, 0.0f) << name_of(dtype);
  }
}

TEST(Quants, ConstantRowsAndTinyValuesSurviveEncoding) {
  for (int i = 0; i < kDTypeCount; ++i) {
    const auto dtype = static_cast<DType>(i);
    if (!traits(dtype).is_quantized) continue;
    for (const float value : {-3.0f, 2.5f}) {
      const float step = dtype == DType::kMXFP4 ? 0.21f : 0.02f;  // mxfp4 may round 2.5 to 2 or 3, an error of 20 %
      for (const float v : round_trip(dtype, std::vector<float>(256, value))) {
        ASSERT_NEAR(v, value, std::fabs(value) * step) << name_of(dtype);
      }
    }
    for (const float v : round_trip(dtype, std::vector<float>(256, 1e-38f))) ASSERT_LE(std::fabs(v), 1e-7f);
  }
}

}  // namespace
}  // namespace shoal
