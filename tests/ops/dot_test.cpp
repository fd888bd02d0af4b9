// Compares the products of the CPU kernels with products in double precision. The tests cover every dtype and every
// instruction-set level of this machine. Some sizes do not fill vectors or tiles.
#include <gtest/gtest.h>

#include <cmath>
#include <cstring>
#include <numeric>
#include <utility>
#include <vector>

#include "base/error.h"
#include "devices/cpu/isa.h"
#include "tests/support/encoders.h"
#include "tests/support/kernel_inputs.h"
#include "tests/support/tensors.h"

namespace shoal::cpu {
namespace {

using test::AlignedBytes;
using test::random_floats;

/// Columns that are converted to one of the formats of `Columns`, and the values that the converted columns represent.
struct SeenColumns {
  SeenColumns(const Kernels& kernels, Columns kind, const std::vector<float>& floats, int64_t k) {
    const ColumnKernels& columns = kernels.columns[static_cast<size_t>(kind)];
    const size_t bytes = columns.bytes(k);
    const auto count = static_cast<int64_t>(floats.size()) / k;
    storage = std::vector<std::byte>(bytes * count);
    for (int64_t j = 0; j < count; ++j) {
      std::byte* column = storage.data() + j * bytes;
      columns.convert(floats.data() + j * k, column, k);
      pointers.push_back(column);
      const auto listed = kind == Columns::kWords ? test::word_outliers(column, k) : std::vector<float>(k);
      outliers.insert(outliers.end(), listed.begin(), listed.end());
      for (int64_t i = 0; i < k; ++i) seen.push_back(element(column, kind, k, i));
    }
  }

  static double element(const std::byte* column, Columns kind, int64_t k, int64_t i) {
    const auto at = [&]<class T>(T, size_t offset) {
      T value;
      std::memcpy(&value, column + offset, sizeof value);
      return static_cast<double>(value);
    };
    switch (kind) {
      case Columns::kFloats:
        return at(float{}, i * 4);
      case Columns::kBytes:
        return at(int8_t{}, i) * at(float{}, k + i / 32 * 4);
      default:
        return at(int16_t{}, 2 * i) * at(float{}, (k + 31) / 32 * 64 + i / 32 * 4);
    }
  }

  std::vector<std::byte> storage;
  std::vector<const std::byte*> pointers;
  std::vector<double> seen, outliers;  ///< the values of converted elements, and of outliers
};

/// Returns the values of the words of a row. The words are the multiples of a power of two that are nearest to the
/// elements. With this power of two, the largest of 32 magnitudes has 13 bits.
std::vector<double> words_of(const std::vector<float>& row) {
  std::vector<double> words;
  for (size_t begin = 0; begin < row.size(); begin += 32) {
    const size_t end = std::min(begin + 32, row.size());
    float most = 0;
    for (size_t i = begin; i < end; ++i) most = std::max(most, std::fabs(row[i]));
    const double unit = most == 0 ? 1 : std::ldexp(1.0, std::ilogb(most) - 12);
    for (size_t i = begin; i < end; ++i) words.push_back(std::nearbyint(row[i] / unit) * unit);
  }
  return words;
}

/// Rows of weights with gaps between the rows, packed copies of these rows, and converted columns.
struct Problem {
  Problem(const Kernels& kernels, DType dtype, int64_t rows, int64_t k, int64_t columns)
      : Problem(kernels, dtype, k, random_floats(rows * k, 1), random_floats(columns * k, 2)) {}

  Problem(const Kernels& kernels, DType dtype, int64_t k, const std::vector<float>& values,
          const std::vector<float>& floats)
      : kernels(kernels),
        weights(kernels.weights[static_cast<int>(dtype)]),
        rows(static_cast<int64_t>(values.size()) / k),
        k(k),
        columns(static_cast<int64_t>(floats.size()) / k),
        stride(bytes_for(dtype, k) + 8),
        a(stride * rows + 16),
        b(kernels, weights.columns, floats, k),
        packed(weights.packed.pack == nullptr
                   ? 0
                   : weights.packed.bytes(k) * ((rows + kernels.panel_rows - 1) / kernels.panel_rows)) {
    std::vector<float> row(k);
    for (int64_t i = 0; i < rows; ++i) {
      // The row may be unaligned. So the values are converted in aligned memory and copied to the row.
      std::vector<std::byte> converted(bytes_for(dtype, k) + 8);
      test::from_f32(dtype, values.data() + i * k, converted.data(), k);
      std::memcpy(a.data() + i * stride, converted.data(), bytes_for(dtype, k));
      traits(dtype).to_f32(converted.data(), row.data(), k);
      exact_a.insert(exact_a.end(), row.begin(), row.end());
      const std::vector<double> words = weights.columns == Columns::kWords ? words_of(row) : std::vector<double>{};
      if (words.empty()) {
        seen_a.insert(seen_a.end(), row.begin(), row.end());
      } else {
        seen_a.insert(seen_a.end(), words.begin(), words.end());
      }
    }
    for (int64_t i = 0; weights.packed.pack != nullptr && i < rows; i += kernels.panel_rows) {
      weights.packed.pack(a.data() + i * stride, stride, std::min(kernels.panel_rows, rows - i), k, group(i));
    }
  }

  std::byte* group(int64_t row) { return packed.data() + row / kernels.panel_rows * weights.packed.bytes(k); }

  /// Compares the results `c` with the exact products of the converted rows and columns. Outliers are multiplied by the
  /// rows before the conversion. The results are stored column after column.
  void expect_products(const std::vector<float>& c) const {
    for (int64_t j = 0; j < columns; ++j) {
      for (int64_t i = 0; i < rows; ++i) {
        double sum = 0, magnitude = 0;
        for (int64_t e = 0; e < k; ++e) {
          const double product = seen_a[i * k + e] * b.seen[j * k + e];
          const double outlier = exact_a[i * k + e] * b.outliers[j * k + e];
          sum += product + outlier;
          magnitude += std::fabs(product) + std::fabs(outlier);
        }
        // For types with minima, kernels add terms that cancel each other. These terms are larger than the products, so
        // the tolerance includes the rounding errors of the terms.
        ASSERT_NEAR(c[j * rows + i], sum, 4e-6 * magnitude + 1e-30) << "row " << i << ", column " << j;
      }
    }
  }

  const Kernels& kernels;
  const WeightKernels& weights;
  int64_t rows, k, columns;
  size_t stride;
  std::vector<std::byte> a;
  std::vector<double> exact_a, seen_a;  ///< the values of the weights, and the values that kernels multiply
  SeenColumns b;
  AlignedBytes packed;
};

std::vector<float*> pointers(std::vector<float>& c, int64_t rows, int64_t columns) {
  std::vector<float*> result;
  for (int64_t j = 0; j < columns; ++j) result.push_back(c.data() + j * rows);
  return result;
}

struct Case {
  std::string_view level;
  DType dtype;
};

class Dot : public testing::TestWithParam<Case> {
 protected:
  const Kernels& kernels() const { return kernels_of(GetParam().level); }
  const WeightKernels& weights() const { return kernels().weights[static_cast<int>(GetParam().dtype)]; }
  std::vector<int64_t> lengths() const {
    switch (traits(GetParam().dtype).block_elems) {
      case 1:
        return {1, 7, 16, 33, 255, 1000};
      case 32:
        return {32, 96, 992};
      case 64:
      case 128:
        return {128, 384, 896};
      default:
        return {256, 768};
    }
  }

  bool is_packable() const { return weights().packed.pack != nullptr; }

  static std::vector<float> dot(const Problem& p) {
    std::vector<float> c(p.rows * p.columns, NAN);
    auto c_pointers = pointers(c, p.rows, p.columns);
    p.weights.dot({p.a.data(), p.stride, p.rows, p.k, p.b.pointers.data(), c_pointers.data(), p.columns});
    return c;
  }

  /// Multiplies packed groups that are panels.
  static std::vector<float> packed_panels(Problem& p) {
    std::vector<float> c(p.rows * p.columns, NAN);
    auto c_pointers = pointers(c, p.rows, p.columns);
    for (int64_t begin = 0; begin < p.k; begin += kFloatBlock) {
      p.weights.panels.multiply({p.group(0) + begin * p.kernels.panel_rows * static_cast<int64_t>(sizeof(float)),
                                 p.weights.packed.bytes(p.k), p.rows, begin, std::min(kFloatBlock, p.k - begin), p.k,
                                 p.b.pointers.data(), c_pointers.data(), p.columns, 0, begin > 0});
    }
    return c;
  }

  static std::vector<float> packed_dot(Problem& p) {
    std::vector<float> c(p.rows * p.columns, NAN);
    auto c_pointers = pointers(c, p.rows, p.columns);
    p.weights.packed.dot(
        {p.group(0), p.weights.packed.bytes(p.k), p.rows, p.k, p.b.pointers.data(), c_pointers.data(), p.columns});
    return c;
  }

  /// Computes the products with panels of `step` elements along k.
  static std::vector<float> panels(Problem& p, int64_t step, bool from_packed = false) {
    const PanelKernels& panels = p.weights.panels;
    std::vector<float> c(p.rows * p.columns, NAN);
    auto c_pointers = pointers(c, p.rows, p.columns);
    const int64_t panel_rows = p.kernels.panel_rows;
    const size_t stride = panels.bytes(step);
    AlignedBytes memory(stride * ((p.rows + panel_rows - 1) / panel_rows));
    for (int64_t begin = 0; begin < p.k; begin += step) {
      const int64_t k = std::min(step, p.k - begin);
      for (int64_t row = 0; row < p.rows; row += panel_rows) {
        std::byte* panel = memory.data() + row / panel_rows * stride;
        if (from_packed) {
          panels.from_packed(p.group(row), begin, k, panel);
        } else {
          panels.from_rows(p.a.data() + row * p.stride + bytes_for(GetParam().dtype, begin), p.stride,
                           std::min(panel_rows, p.rows - row), k, panel);
        }
      }
      panels.multiply({memory.data(), stride, p.rows, begin, k, p.k, p.b.pointers.data(), c_pointers.data(), p.columns,
                       0, begin > 0});
    }
    const auto b = p.b.pointers.data();
    if (panels.add_outliers != nullptr && from_packed) {
      panels.add_packed_outliers(
          {p.group(0), p.weights.packed.bytes(p.k), p.rows, p.k, b, c_pointers.data(), p.columns});
    } else if (panels.add_outliers != nullptr) {
      panels.add_outliers({p.a.data(), p.stride, p.rows, p.k, b, c_pointers.data(), p.columns});
    }
    return c;
  }
};

TEST_P(Dot, AllFormsHaveTheBitsOfPanels) {
  for (const int64_t k : lengths()) {
    for (const int64_t rows : {1, 3, 16, 37}) {
      for (const int64_t columns : {1, 2, 3, 4, 5, 6, 7, 8, 9, 15}) {
        Problem p(kernels(), GetParam().dtype, rows, k, columns);
        const std::vector<float> expected = panels(p, kFloatBlock);
        if (weights().dot != nullptr) {
          ASSERT_EQ(dot(p), expected) << k << ", " << rows << ", " << columns;
        }
        if (weights().packed.dot != nullptr) {
          ASSERT_EQ(packed_dot(p), expected) << k << ", " << rows << ", " << columns;
        }
        if (!weights().panels.is_packed) continue;
        ASSERT_EQ(packed_panels(p), expected) << k << ", " << rows << ", " << columns;
      }
    }
  }
}

/// Only the blocks of f32 products depend on the length of panels.
TEST_P(Dot, LengthOfPanelsDoesNotAffectIntegerProducts) {
  if (weights().columns == Columns::kFloats) GTEST_SKIP();
  Problem p(kernels(), GetParam().dtype, 21, lengths().back(), 9);
  const std::vector<float> expected = panels(p, 2048);
  for (const int64_t step : {256, 512}) ASSERT_EQ(panels(p, step), expected) << step;
}

TEST_P(Dot, DotsOfPanelsMatchDoublePrecisionSums) {
  for (const int64_t k : lengths()) {
    for (const int64_t rows : {1, 16, 37}) {
      for (const int64_t columns : {1, 8, 15}) {
        Problem p(kernels(), GetParam().dtype, rows, k, columns);
        p.expect_products(panels(p, 1024));
        p.expect_products(panels(p, kPanelStep));
        if (!is_packable()) continue;
        ASSERT_EQ(panels(p, kPanelStep, true), panels(p, kPanelStep)) << "of packed rows";
      }
    }
  }
}

/// Tests only the types f32, f16 and bf16. As in models, one channel is large in all columns and has small weights. So
/// the products of this channel do not hide the errors of the other channels.
TEST_P(Dot, OutlierChannelsDoNotDegradeOtherChannels) {
  if (!traits(GetParam().dtype).is_float) GTEST_SKIP();
  constexpr int64_t kRows = 37, kElements = 544, kColumns = 9;
  for (const float factor : {1.0f, 30.0f, 100.0f, 1000.0f, 10000.0f}) {
    std::vector<float> rows = random_floats(kRows * kElements, 1), columns = random_floats(kColumns * kElements, 2);
    // Channel 7 is the only large channel in its group of 32 elements. Channels 333 and 340 are in the same group.
    for (const auto& [channel, size] : {std::pair(7, factor), {333, factor}, {340, std::sqrt(factor)}}) {
      for (int64_t i = 0; i < kRows; ++i) rows[i * kElements + channel] /= size;
      for (int64_t j = 0; j < kColumns; ++j) columns[j * kElements + channel] *= size;
    }
    Problem p(kernels(), GetParam().dtype, kElements, rows, columns);
    std::vector<double> exact;
    for (int64_t j = 0; j < kColumns; ++j) {
      for (int64_t i = 0; i < kRows; ++i) {
        const double* row = p.exact_a.data() + i * kElements;
        exact.push_back(std::inner_product(row, row + kElements, columns.begin() + j * kElements, 0.0));
      }
    }
    for (const auto& c : {panels(p, kPanelStep), panels(p, kPanelStep, true)}) {
      EXPECT_TRUE(test::close_to({c.begin(), c.end()}, exact, {1e-6})) << "factor " << factor;
    }
  }
}

/// Kernels store some integer sums in 16 bits. These sums must not overflow with the largest positive and negative
/// integers.
TEST_P(Dot, LargestIntegersDoNotOverflow) {
  const int64_t k = 256;
  std::vector<float> rows, columns;
  for (int bits = 2; bits <= 8; ++bits) {
    // In each group of 16 integers, one integer is the smallest and 15 integers are the largest, or vice versa.
    const auto half = static_cast<float>(1 << (bits - 1));
    for (int64_t i = 0; i < k; ++i) rows.push_back(i % 16 == 0 ? -half : half - 1);
    for (int64_t i = 0; i < k; ++i) rows.push_back(i % 16 == 0 ? half - 1 : -half);
  }
  // The first eight columns fill a tile. The ninth column does not fit into this tile.
  for (const int period : {1, 2, 4, 8}) {
    for (int64_t i = 0; i < k; ++i) columns.push_back(i % period == 0 ? 1.0f : -1.0f);
    for (int64_t i = 0; i < k; ++i) columns.push_back(i % period == 0 ? -1.0f : 1.0f);
  }
  for (int64_t i = 0; i < k; ++i) columns.push_back(i % 16 == 0 ? -1.0f : 1.0f);
  Problem p(kernels(), GetParam().dtype, k, rows, columns);
  if (weights().dot != nullptr) p.expect_products(dot(p));
  p.expect_products(panels(p, k));
  if (!is_packable()) return;
  if (weights().packed.dot != nullptr) p.expect_products(packed_dot(p));
  p.expect_products(panels(p, k, true));
}

TEST_P(Dot, UnpackingRestoresRowsExactly) {
  if (!is_packable()) GTEST_SKIP();
  for (const int64_t k : lengths()) {
    Problem p(kernels(), GetParam().dtype, 21, k, 1);
    const size_t bytes = bytes_for(GetParam().dtype, k);
    std::vector<std::byte> row(bytes);
    for (int64_t i = 0; i < p.rows; ++i) {
      weights().packed.unpack(p.group(i), i % kernels().panel_rows, 0, k, row.data());
      ASSERT_EQ(std::memcmp(row.data(), p.a.data() + i * p.stride, bytes), 0) << "row " << i << " of " << k;
      if (k <= kPanelStep) continue;
      weights().packed.unpack(p.group(i), i % kernels().panel_rows, kPanelStep, k - kPanelStep, row.data());
      const size_t begin = bytes_for(GetParam().dtype, kPanelStep);
      ASSERT_EQ(std::memcmp(row.data(), p.a.data() + i * p.stride + begin, bytes - begin), 0) << "end of row " << i;
    }
  }
}

TEST_P(Dot, ElementsHaveTheSameBitsInEveryTile) {
  Problem all(kernels(), GetParam().dtype, 37, lengths().back(), 15);
  const std::vector<float> products = panels(all, kPanelStep);
  Problem one(kernels(), GetParam().dtype, 1, all.k, 1);
  for (int64_t row = 0; row < all.rows; ++row) {
    std::memcpy(one.a.data(), all.a.data() + row * all.stride, one.stride);
    for (int64_t column = 0; column < all.columns; ++column) {
      one.b.pointers = {all.b.pointers[column]};
      ASSERT_EQ(panels(one, kPanelStep)[0], products[column * all.rows + row]) << row << ", " << column;
    }
  }
}

TEST_P(Dot, ConversionToF32MatchesReferenceBitForBit) {
  for (const int64_t k : lengths()) {
    const Problem p(kernels(), GetParam().dtype, 1, k, 1);
    std::vector<float> converted(k);
    weights().to_f32(p.a.data(), converted.data(), k);
    for (int64_t i = 0; i < k; ++i) ASSERT_EQ(converted[i], static_cast<float>(p.exact_a[i])) << i;
  }
}

std::vector<Case> cases() {
  std::vector<Case> result;
  for (const std::string_view level : usable_levels()) {
    for (int i = 0; i < kDTypeCount; ++i) {
      const auto dtype = static_cast<DType>(i);
      if (traits(dtype).is_float || traits(dtype).is_quantized) result.push_back({level, dtype});
    }
  }
  return result;
}

INSTANTIATE_TEST_SUITE_P(Levels, Dot, testing::ValuesIn(cases()), [](const auto& info) {
  return std::string(info.param.level) + "_" + std::string(name_of(info.param.dtype));
});

TEST(DotTable, EveryFloatAndQuantisedTypeHasKernels) {
  for (const std::string_view level : usable_levels()) {
    for (int i = 0; i < kDTypeCount; ++i) {
      const DTypeTraits& type = traits(static_cast<DType>(i));
      const WeightKernels& weights = kernels_of(level).weights[i];
      EXPECT_EQ(weights.panels.multiply != nullptr, type.is_float || type.is_quantized) << type.name;
      if (weights.panels.multiply == nullptr) continue;
      const bool is_packable = weights.packed.pack != nullptr, is_f32 = i == static_cast<int>(DType::kF32);
      EXPECT_TRUE(is_packable || type.is_coded) << type.name;
      EXPECT_EQ(weights.columns, type.is_quantized ? Columns::kBytes
                                 : is_f32          ? Columns::kFloats
                                                   : Columns::kWords)
          << type.name;
      EXPECT_EQ(weights.panels.is_packed, is_f32) << type.name;
      EXPECT_EQ(weights.packed.dot != nullptr, is_packable && !is_f32) << type.name;
      EXPECT_EQ(weights.panels.from_packed != nullptr, is_packable) << type.name;
    }
  }
}

}  // namespace
}  // namespace shoal::cpu
