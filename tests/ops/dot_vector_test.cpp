// Quantised columns and the loops over rows of f32, for every instruction-set level of this machine.
#include <gtest/gtest.h>

#include <cmath>
#include <cstring>
#include <limits>
#include <random>
#include <vector>

#include "devices/cpu/isa.h"
#include "graph/error.h"

namespace shoal::cpu {
namespace {

constexpr float kInfinity = std::numeric_limits<float>::infinity();

class VectorTest : public testing::TestWithParam<std::string_view> {
 protected:
  const Kernels& kernels() const { return kernels_of(GetParam()); }
  const VectorKernels& vector() const { return kernels().vector; }
  const ColumnKernels& bytes_columns() const { return kernels().columns[static_cast<size_t>(Columns::kBytes)]; }
  const ColumnKernels& word_columns() const { return kernels().columns[static_cast<size_t>(Columns::kWords)]; }
};

std::vector<float> random_floats(size_t n) {
  std::mt19937 engine(7);
  std::normal_distribution<float> normal(0.0f, 1.0f);
  std::vector<float> values(n);
  for (float& v : values) v = normal(engine);
  return values;
}

TEST_P(VectorTest, QuantizedColumnsAreWithinHalfAStep) {
  const int64_t k = 512;
  auto x = random_floats(k);
  for (int64_t i = 0; i < 32; ++i) x[i] = 0;
  for (int64_t i = 32; i < 64; ++i) x[i] *= 1e-33f;
  for (int64_t i = 64; i < 96; ++i) x[i] *= 1e30f;
  std::vector<std::byte> column(bytes_columns().bytes(k));
  bytes_columns().convert(x.data(), column.data(), k);
  for (int64_t block = 0; block < k / 32; ++block) {
    float largest = 0, scale;
    std::memcpy(&scale, column.data() + 2 * k + 4 * block, 4);
    for (int64_t i = 32 * block; i < 32 * block + 32; ++i) largest = std::max(largest, std::fabs(x[i]));
    for (int64_t i = 32 * block; i < 32 * block + 32; ++i) {
      const float value = static_cast<float>(static_cast<int8_t>(column[i])) * scale;
      const float fine = static_cast<float>(static_cast<int8_t>(column[k + i])) * scale / 256;
      ASSERT_LE(std::fabs(x[i] - value), largest / 254 * 1.0001f + 1e-30f) << i;
      ASSERT_LE(std::fabs(x[i] - value - fine), largest / 254 / 128 * 1.0001f + 1e-30f) << i;
    }
  }
}

TEST_P(VectorTest, ColumnsOfWordsAreWithinHalfAStep) {
  for (const int64_t k : {1, 31, 32, 200}) {
    const auto x = random_floats(k);
    std::vector<std::byte> column(word_columns().bytes(k));
    word_columns().convert(x.data(), column.data(), k);
    const int64_t parts = (k + 31) / 32;
    for (int64_t i = 0; i < 32 * parts; ++i) {
      float largest = 0, scale;
      for (int64_t j = i / 32 * 32; j < std::min(k, i / 32 * 32 + 32); ++j)
        largest = std::max(largest, std::fabs(x[j]));
      int16_t word;
      std::memcpy(&word, column.data() + 2 * i, 2);
      std::memcpy(&scale, column.data() + 64 * parts + i / 32 * 4, 4);
      const float expected = i < k ? x[i] : 0.0f;
      ASSERT_LE(std::fabs(expected - word * scale), largest / 16382 * 1.001f) << i << " of " << k;
    }
  }
}

TEST_P(VectorTest, NonFiniteColumnsStayNonFinite) {
  for (const float odd : {NAN, kInfinity, -kInfinity}) {
    auto x = random_floats(64);
    x[40] = odd;
    std::vector<std::byte> column(bytes_columns().bytes(64)), weights(bytes_for(DType::kQ8_0, 64));
    bytes_columns().convert(x.data(), column.data(), 64);
    const auto w = random_floats(64);
    traits(DType::kQ8_0).from_f32(w.data(), weights.data(), 64);
    const std::byte* b = column.data();
    float result = 0;
    float* c = &result;
    kernels().weights[static_cast<int>(DType::kQ8_0)].dot({weights.data(), weights.size(), 1, 64, &b, &c, 1});
    EXPECT_FALSE(std::isfinite(result)) << odd;
  }
}

TEST_P(VectorTest, ExpIsWithinTwoUnitsInTheLastPlace) {
  std::vector<float> x;
  for (float v = -103.0f; v < 88.7f; v += 0.00137f) x.push_back(v);
  std::vector<float> y(x.size());
  vector().exp(x.data(), 0, y.data(), static_cast<int64_t>(x.size()));
  for (size_t i = 0; i < x.size(); ++i) {
    const double exact = std::exp(static_cast<double>(x[i]));
    const auto nearest = static_cast<float>(exact);
    const double unit = static_cast<double>(std::nextafter(nearest, kInfinity)) - nearest;
    ASSERT_LE(std::fabs(y[i] - exact), 2 * unit) << x[i];
  }
}

TEST_P(VectorTest, ExpOfOddValuesAndItsSum) {
  std::vector<float> x{-kInfinity, -1000, 0, 89, kInfinity, NAN, 88.72f, -87.5f};
  std::vector<float> y(x.size());
  vector().exp(x.data(), 0, y.data(), static_cast<int64_t>(x.size()));
  EXPECT_EQ(y[0], 0);
  EXPECT_EQ(y[1], 0);
  EXPECT_EQ(y[2], 1);
  EXPECT_EQ(y[3], kInfinity);
  EXPECT_EQ(y[4], kInfinity);
  EXPECT_TRUE(std::isnan(y[5]));
  EXPECT_TRUE(std::isfinite(y[6]));
  EXPECT_GT(y[7], 0);

  auto values = random_floats(101);
  double sum = 0;
  for (const float v : values) sum += std::exp(static_cast<double>(v) - 0.75);
  const float returned = vector().exp(values.data(), 0.75f, values.data(), 101);
  EXPECT_NEAR(returned, sum, 1e-6 * sum);
}

TEST_P(VectorTest, Max) {
  EXPECT_EQ(vector().max(nullptr, 0), -kInfinity);
  for (const int64_t n : {1, 15, 16, 37}) {
    for (int64_t at = 0; at < n; ++at) {
      std::vector<float> x(n, -3.0f);
      x[at] = -2.0f;
      ASSERT_EQ(vector().max(x.data(), n), -2.0f) << n << ": " << at;
    }
  }
}

INSTANTIATE_TEST_SUITE_P(Levels, VectorTest, testing::ValuesIn(usable_levels()),
                         [](const auto& info) { return std::string(info.param); });

TEST(Isa, NamesLevels) {
  EXPECT_EQ(usable_levels().front(), "baseline");
  EXPECT_EQ(&kernels_of(""), &kernels_of(usable_levels().back()));
  EXPECT_THROW(kernels_of("avx1024"), InvalidArgument);
}

}  // namespace
}  // namespace shoal::cpu
