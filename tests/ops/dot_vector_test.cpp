// Tests of quantised columns and of loops over f32 rows, for every instruction-set level of this machine.
#include <gtest/gtest.h>

#include <bit>
#include <cmath>
#include <cstring>
#include <limits>
#include <map>
#include <random>
#include <vector>

#include "base/error.h"
#include "devices/cpu/isa.h"
#include "tests/support/kernel_inputs.h"

namespace shoal::cpu {
namespace {

constexpr float kInfinity = std::numeric_limits<float>::infinity();

class Vector : public testing::TestWithParam<std::string_view> {
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

TEST_P(Vector, RoundingErrorOfByteColumnsIsAtMostHalfAStep) {
  const int64_t k = 512;
  auto x = random_floats(k);
  for (int64_t i = 0; i < 32; ++i) x[i] = 0;
  for (int64_t i = 32; i < 64; ++i) x[i] *= 1e-33f;
  for (int64_t i = 64; i < 96; ++i) x[i] *= 1e30f;
  std::vector<std::byte> column(bytes_columns().bytes(k));
  bytes_columns().convert(x.data(), column.data(), k);
  for (int64_t block = 0; block < k / 32; ++block) {
    float largest = 0, scale;
    std::memcpy(&scale, column.data() + k + 4 * block, 4);
    for (int64_t i = 32 * block; i < 32 * block + 32; ++i) largest = std::max(largest, std::fabs(x[i]));
    for (int64_t i = 32 * block; i < 32 * block + 32; ++i) {
      const float value = static_cast<float>(static_cast<int8_t>(column[i])) * scale;
      ASSERT_LE(std::fabs(x[i] - value), largest / 254 * 1.0001f + 1e-30f) << i;
    }
  }
}

TEST_P(Vector, RoundingErrorOfWordColumnsIsAtMostHalfAStep) {
  for (const int64_t k : {1, 31, 32, 200}) {
    const auto x = random_floats(k);
    std::vector<std::byte> column(word_columns().bytes(k));
    word_columns().convert(x.data(), column.data(), k);
    const int64_t parts = (k + 31) / 32;
    const std::vector<float> outliers = test::word_outliers(column.data(), k);
    for (int64_t i = 0; i < 32 * parts; ++i) {
      float largest = 0, scale;
      for (int64_t j = i / 32 * 32; j < std::min(k, i / 32 * 32 + 32); ++j)
        largest = std::max(largest, std::fabs(x[j]));
      int16_t word;
      std::memcpy(&word, column.data() + 2 * i, 2);
      std::memcpy(&scale, column.data() + 64 * parts + i / 32 * 4, 4);
      const float expected = i < k ? x[i] - outliers[i] : 0.0f;
      ASSERT_LE(std::fabs(expected - word * scale), largest / 16382 * 1.001f) << i << " of " << k;
    }
  }
}

TEST_P(Vector, ListedOutliersDoNotIncreaseScale) {
  std::vector<float> plain(32, 0.5f), single = plain, nested = plain, many = plain, alone(32);
  single[3] = -1000;
  nested[3] = -1000, nested[30] = 20;
  for (int i = 0; i < 5; ++i) many[i] = 1000;
  alone[3] = -1000;
  struct Expected {
    std::vector<float> x;
    float largest;  ///< largest magnitude of the elements that are not outliers
    std::map<int, float> outliers;
  };
  std::vector<Expected> parts{{plain, 0.5f, {}},   {single, 0.5f, {{3, -1000}}}, {nested, 0.5f, {{3, -1000}, {30, 20}}},
                              {many, 1000.0f, {}}, {alone, 1000.0f, {}},         {single, 0.5f, {{3, -1000}}}};
  parts.resize(15, parts.front());
  parts.push_back({single, 1000.0f, {}});  // no outliers, because the list of outliers for 16 parts is full
  std::vector<float> x, outliers;
  for (const Expected& part : parts) {
    x.insert(x.end(), part.x.begin(), part.x.end());
    std::vector<float> listed(32);
    for (const auto& [at, value] : part.outliers) listed[at] = value;
    outliers.insert(outliers.end(), listed.begin(), listed.end());
  }
  const auto k = static_cast<int64_t>(x.size());
  std::vector<std::byte> column(word_columns().bytes(k));
  word_columns().convert(x.data(), column.data(), k);
  EXPECT_EQ(test::word_outliers(column.data(), k), outliers);
  for (size_t i = 0; i < parts.size(); ++i) {
    float scale;
    std::memcpy(&scale, column.data() + 2 * k + 4 * i, 4);
    EXPECT_FLOAT_EQ(scale * 8191, parts[i].largest) << i;
  }
}

/// Reads numbers from an array of bytes.
template <class T>
std::vector<T> numbers_at(const std::vector<std::byte>& bytes, size_t at, size_t count) {
  std::vector<T> result(count);
  std::memcpy(result.data(), bytes.data() + at, count * sizeof(T));
  return result;
}

/// The third NaN has a payload in the bits that kernels read as integers.
const std::vector<float> kOdd{NAN, -NAN, std::bit_cast<float>(0x7fc12345u), kInfinity, -kInfinity};

// The second of two parts contains NaN or infinity. The scale and the float sums of this part are NaN. The values
// and integer sums of this part are zero. The first part does not change.
TEST_P(Vector, PartsWithNaNOrInfinityHaveZeroValues) {
  const auto x = random_floats(64);
  std::vector<std::byte> column(bytes_columns().bytes(64)), clean = column;
  bytes_columns().convert(x.data(), clean.data(), 64);
  for (const float odd : kOdd) {
    for (const size_t at : {32, 40, 63}) {
      auto dirty = x;
      dirty[at] = odd;
      bytes_columns().convert(dirty.data(), column.data(), 64);
      ASSERT_EQ(numbers_at<int8_t>(column, 0, 32), numbers_at<int8_t>(clean, 0, 32));
      ASSERT_EQ(numbers_at<int8_t>(column, 32, 32), std::vector<int8_t>(32)) << odd << " at " << at;
      // For each group of 32 elements, the column contains one scale, one sum and two half sums. A half sum is the sum
      // of 16 elements.
      const auto floats = numbers_at<float>(column, 64, 8), clean_floats = numbers_at<float>(clean, 64, 8);
      for (const size_t i : {0, 2, 4, 5}) ASSERT_EQ(floats[i], clean_floats[i]) << i;
      for (const size_t i : {1, 3, 6, 7}) ASSERT_TRUE(std::isnan(floats[i])) << i;
      // For each group of 32 elements, the column also contains three integers (column.h): one start and two half
      // starts.
      const auto integers = numbers_at<int32_t>(column, 96, 6), clean_integers = numbers_at<int32_t>(clean, 96, 6);
      for (const size_t i : {0, 2, 3}) ASSERT_EQ(integers[i], clean_integers[i]) << i;
      for (const size_t i : {1, 4, 5}) ASSERT_EQ(integers[i], 0) << i;
    }
  }
}

TEST_P(Vector, WordColumnPartsWithNaNOrInfinityHaveZeroWords) {
  const auto x = random_floats(64);
  std::vector<std::byte> column(word_columns().bytes(64)), clean = column;
  word_columns().convert(x.data(), clean.data(), 64);
  for (const float odd : kOdd) {
    for (const size_t at : {32, 40, 63}) {
      auto dirty = x;
      dirty[at] = odd;
      word_columns().convert(dirty.data(), column.data(), 64);
      ASSERT_EQ(numbers_at<int16_t>(column, 0, 32), numbers_at<int16_t>(clean, 0, 32));
      ASSERT_EQ(numbers_at<int16_t>(column, 64, 32), std::vector<int16_t>(32)) << odd << " at " << at;
      const auto scales = numbers_at<float>(column, 128, 2);
      ASSERT_EQ(scales[0], numbers_at<float>(clean, 128, 1)[0]);
      ASSERT_TRUE(std::isnan(scales[1]));
    }
  }
}

// For every 32 elements, a panel stores one scale for each row. The scales precede the pairs of words of all rows.
TEST_P(Vector, PanelRowsWithNaNOrInfinityHaveZeroWords) {
  const PanelKernels& panels = kernels().weights[static_cast<size_t>(DType::kBF16)].panels;
  const auto rows = static_cast<size_t>(kernels().panel_rows), odd_row = rows - 2;
  std::vector<uint16_t> a(rows * 32);
  const auto x = random_floats(a.size());
  traits(DType::kBF16).from_f32(x.data(), a.data(), static_cast<int64_t>(x.size()));
  std::vector<std::byte> panel(panels.bytes(32)), clean = panel;
  const auto fill = [&](std::vector<std::byte>& to) {
    panels.from_rows(reinterpret_cast<const std::byte*>(a.data()), 64, static_cast<int64_t>(rows), 32, to.data());
  };
  fill(clean);
  for (const float odd : kOdd) {
    const uint16_t before = a[odd_row * 32 + 17];
    traits(DType::kBF16).from_f32(&odd, &a[odd_row * 32 + 17], 1);
    fill(panel);
    a[odd_row * 32 + 17] = before;
    for (size_t row = 0; row < rows; ++row) {
      const float scale = numbers_at<float>(panel, 4 * row, 1)[0];
      if (row == odd_row) {
        ASSERT_TRUE(std::isnan(scale)) << odd;
      } else {
        ASSERT_EQ(scale, numbers_at<float>(clean, 4 * row, 1)[0]) << odd << ": row " << row;
      }
      for (size_t pair = 0; pair < 16; ++pair) {
        const size_t at = 4 * (rows + pair * rows + row);
        const auto words = numbers_at<int16_t>(panel, at, 2);
        ASSERT_EQ(words, row == odd_row ? std::vector<int16_t>(2) : numbers_at<int16_t>(clean, at, 2))
            << odd << ": row " << row << ", pair " << pair;
      }
    }
  }
}

TEST_P(Vector, ExpIsWithinTwoUnitsInTheLastPlace) {
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

TEST_P(Vector, ExpHandlesSpecialValuesAndReturnsTheSum) {
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

TEST_P(Vector, MaxFindsTheLargestElement) {
  EXPECT_EQ(vector().max(nullptr, 0), -kInfinity);
  for (const int64_t n : {1, 15, 16, 37}) {
    for (int64_t at = 0; at < n; ++at) {
      std::vector<float> x(n, -3.0f);
      x[at] = -2.0f;
      ASSERT_EQ(vector().max(x.data(), n), -2.0f) << n << ": " << at;
    }
  }
}

INSTANTIATE_TEST_SUITE_P(Levels, Vector, testing::ValuesIn(usable_levels()),
                         [](const auto& info) { return std::string(info.param); });

TEST(Isa, EmptyNameGivesHighestLevelAndUnknownNameThrows) {
  EXPECT_EQ(usable_levels().front(), "baseline");
  EXPECT_EQ(&kernels_of(""), &kernels_of(usable_levels().back()));
  EXPECT_THROW(kernels_of("avx1024"), InvalidArgument);
}

}  // namespace
}  // namespace shoal::cpu
