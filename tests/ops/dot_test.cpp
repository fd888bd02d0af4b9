// The products of the CPU kernels against double precision, for every instruction-set level of this machine, every
// dtype and sizes that do not fill vectors or tiles.
#include <gtest/gtest.h>

#include <cmath>
#include <cstring>
#include <random>
#include <vector>

#include "devices/cpu/isa.h"
#include "graph/error.h"

namespace shoal::cpu {
namespace {

std::vector<float> random_floats(size_t n, uint32_t seed) {
  std::mt19937 engine(seed);
  std::normal_distribution<float> normal(0.1f, 1.0f);
  std::vector<float> values(n);
  for (float& v : values) v = normal(engine);
  return values;
}

struct AlignedBytes {
  explicit AlignedBytes(size_t size) : storage(size + 64) {}
  std::byte* data() { return storage.data() + (64 - reinterpret_cast<uintptr_t>(storage.data()) % 64) % 64; }
  std::vector<std::byte> storage;
};

/// Rows of weights with gaps between them, columns as a kernel takes them, and both as double.
struct Problem {
  Problem(const Kernels& kernels, DType dtype, int64_t rows, int64_t k, int64_t columns)
      : rows(rows), k(k), columns(columns), stride(bytes_for(dtype, k) + 8), a(stride * rows + 16) {
    const WeightKernels& weights = kernels.weights[static_cast<int>(dtype)];
    const auto values = random_floats(rows * k, 1);
    std::vector<float> row(k);
    for (int64_t i = 0; i < rows; ++i) {
      // Whatever the row's place: copied from an aligned conversion.
      std::vector<std::byte> converted(bytes_for(dtype, k) + 8);
      traits(dtype).from_f32(values.data() + i * k, converted.data(), k);
      std::memcpy(a.data() + i * stride, converted.data(), bytes_for(dtype, k));
      traits(dtype).to_f32(converted.data(), row.data(), k);
      exact_a.insert(exact_a.end(), row.begin(), row.end());
    }
    floats = random_floats(columns * k, 2);
    const size_t column_bytes = weights.quantized_columns ? kernels.column_bytes(k) : k * sizeof(float);
    b = std::vector<std::byte>(column_bytes * columns);
    for (int64_t j = 0; j < columns; ++j) {
      std::byte* column = b.data() + j * column_bytes;
      if (weights.quantized_columns) {
        kernels.quantize(floats.data() + j * k, column, k);
      } else {
        std::memcpy(column, floats.data() + j * k, column_bytes);
      }
      b_pointers.push_back(column);
      read_column(column, weights.quantized_columns);
    }
  }

  void read_column(const std::byte* column, bool quantized) {
    for (int64_t i = 0; i < k; ++i) {
      float value, scale = 1;
      if (quantized) {
        value = static_cast<float>(static_cast<int8_t>(column[i]));
        std::memcpy(&scale, column + 2 * k + i / 32 * 4, 4);
        coarse_b.push_back(static_cast<double>(value) * scale);
        value += static_cast<float>(static_cast<int8_t>(column[k + i])) / 256;
      } else {
        std::memcpy(&value, column + i * 4, 4);
        coarse_b.push_back(value);
      }
      exact_b.push_back(static_cast<double>(value) * scale);
    }
  }

  /// Compares c (column after column) with the exact products of the rows and of b.
  void expect_products(const std::vector<float>& c, const std::vector<double>& b) const {
    for (int64_t j = 0; j < columns; ++j) {
      for (int64_t i = 0; i < rows; ++i) {
        double sum = 0, magnitude = 0;
        for (int64_t e = 0; e < k; ++e) {
          sum += exact_a[i * k + e] * b[j * k + e];
          magnitude += std::fabs(exact_a[i * k + e] * b[j * k + e]);
        }
        // Types with minima cancel terms that are larger than the products.
        ASSERT_NEAR(c[j * rows + i], sum, 4e-6 * magnitude + 1e-30) << "row " << i << ", column " << j;
      }
    }
  }

  int64_t rows, k, columns;
  size_t stride;
  std::vector<std::byte> a, b;
  std::vector<double> exact_a;
  std::vector<double> exact_b, coarse_b;  ///< as dot and as panels see the columns
  std::vector<float> floats;
  std::vector<const std::byte*> b_pointers;
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

class DotTest : public testing::TestWithParam<Case> {
 protected:
  const Kernels& kernels() const { return kernels_of(GetParam().level); }
  const WeightKernels& weights() const { return kernels().weights[static_cast<int>(GetParam().dtype)]; }
  std::vector<int64_t> lengths() const {
    switch (traits(GetParam().dtype).block_elems) {
      case 1:
        return {1, 7, 16, 33, 255, 1000};
      case 32:
        return {32, 96, 992};
      default:
        return {256, 768};
    }
  }

  std::vector<float> dot(const Problem& p) const {
    std::vector<float> c(p.rows * p.columns, NAN);
    auto c_pointers = pointers(c, p.rows, p.columns);
    weights().dot({p.a.data(), p.stride, p.rows, p.k, p.b_pointers.data(), c_pointers.data(), p.columns});
    return c;
  }

  /// With panels cut along k every `step` elements.
  std::vector<float> panels(const Problem& p, int64_t step) const {
    std::vector<float> c(p.rows * p.columns, NAN);
    AlignedBytes panel(weights().panel_bytes(step));
    for (int64_t row = 0; row < p.rows; row += kernels().panel_rows) {
      const int64_t rows = std::min(kernels().panel_rows, p.rows - row);
      auto c_pointers = pointers(c, p.rows, p.columns);
      for (float*& pointer : c_pointers) pointer += row;
      for (int64_t begin = 0; begin < p.k; begin += step) {
        const int64_t k = std::min(step, p.k - begin);
        weights().pack(p.a.data() + row * p.stride + bytes_for(GetParam().dtype, begin), p.stride, rows, k,
                       panel.data());
        weights().multiply(
            {panel.data(), rows, begin, k, p.k, p.b_pointers.data(), c_pointers.data(), p.columns, 0, begin > 0});
      }
    }
    return c;
  }
};

TEST_P(DotTest, DotMatchesDouble) {
  for (const int64_t k : lengths()) {
    for (const int64_t rows : {1, 3, 6}) {
      for (const int64_t columns : {1, 2, 3}) {
        const Problem p(kernels(), GetParam().dtype, rows, k, columns);
        p.expect_products(dot(p), p.exact_b);
      }
    }
  }
}

TEST_P(DotTest, PanelsMatchDouble) {
  for (const int64_t k : lengths()) {
    for (const int64_t rows : {1, 16, 21}) {
      for (const int64_t columns : {1, 8, 11}) {
        const Problem p(kernels(), GetParam().dtype, rows, k, columns);
        p.expect_products(panels(p, 1024), p.coarse_b);
        p.expect_products(panels(p, kPanelStep), p.coarse_b);
      }
    }
  }
}

TEST_P(DotTest, AnElementIsTheSameBitsInEveryTile) {
  const Problem all(kernels(), GetParam().dtype, 21, lengths().back(), 11);
  const std::vector<float> dots = dot(all), products = panels(all, kPanelStep);
  for (int64_t row = 0; row < all.rows; ++row) {
    for (int64_t column = 0; column < all.columns; ++column) {
      Problem one = all;
      one.rows = one.columns = 1;
      one.a.erase(one.a.begin(), one.a.begin() + row * one.stride);
      one.b_pointers = {all.b_pointers[column]};
      ASSERT_EQ(dot(one)[0], dots[column * all.rows + row]) << row << ", " << column;
      ASSERT_EQ(panels(one, kPanelStep)[0], products[column * all.rows + row]) << row << ", " << column;
    }
  }
}

TEST_P(DotTest, ToF32MatchesTheTraitsBitForBit) {
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

INSTANTIATE_TEST_SUITE_P(Levels, DotTest, testing::ValuesIn(cases()), [](const auto& info) {
  return std::string(info.param.level) + "_" + std::string(name_of(info.param.dtype));
});

TEST(DotTable, EveryFloatAndQuantisedTypeHasKernels) {
  for (const std::string_view level : usable_levels()) {
    for (int i = 0; i < kDTypeCount; ++i) {
      const DTypeTraits& type = traits(static_cast<DType>(i));
      const WeightKernels& weights = kernels_of(level).weights[i];
      EXPECT_EQ(weights.dot != nullptr, type.is_float || type.is_quantized) << type.name;
      EXPECT_EQ(weights.quantized_columns, type.is_quantized) << type.name;
    }
  }
}

}  // namespace
}  // namespace shoal::cpu
