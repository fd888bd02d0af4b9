// Panels of f16 and bf16 weights. The weights are words (words.h). A part of a panel has 32 elements of each row. It
// consists of a vector of scales and 16 vectors of words.
//
// After the panels are multiplied, outliers of columns are multiplied in f32 by the original weights. With 14 bits, a
// small weight next to large weights would not be exact enough for these products.
#include "devices/cpu/kernels/column.h"
#include "devices/cpu/kernels/packed_rows.h"
#include "devices/cpu/kernels/panel_held.h"
#include "devices/cpu/kernels/part.h"
#include "devices/cpu/kernels/row_lanes.h"
#include "devices/cpu/kernels/weights.h"
#include "devices/cpu/kernels/words.h"

namespace shoal::cpu::SHOAL_ISA {
namespace {

struct Words {
  using Column = WordColumn;
  static constexpr int kGroups = 1, kSteps = 16;
  static constexpr bool kAdds = false;
  static constexpr size_t kScales = 0, kValues = sizeof(F32), kBytes = kValues + kSteps * sizeof(Bytes);
  static Column column_at(const std::byte* at, int64_t k_total, int64_t k_begin) {
    return word_column_at(at, k_total, k_begin);
  }
  static I32 start(const Column&, int64_t, int) { return I32{}; }
  static I32 step(I32 sum, Bytes weights, Bytes column) { return pair_dot(sum, weights, column); }

  static constexpr int kHeldSteps = 4;
  static I32 held(I32 sum, const Bytes (&weights)[kHeldSteps], const Bytes (&columns)[kHeldSteps]) {
    SHOAL_UNROLL
    for (int i = 0; i < kHeldSteps; ++i) sum = pair_dot(sum, weights[i], columns[i]);
    return sum;
  }
};

/// Encodes one part of a panel. v[i] contains element i of all rows. If an element of a row is not finite, all words of
/// the row are zero.
void encode(F32 (&v)[32], std::byte* part) {
  const I32 exponents = exponents_of(v), odd = exponents == kNotFinite;
  if (any_lane(odd)) {
    for (F32& x : v) x = odd ? F32{} : x;
  }
  const WordScales scales(exponents);
  store(part + Words::kScales, scales.scales);
  SHOAL_UNROLL
  for (int i = 0; i < Words::kSteps; ++i) {
    store(part + Words::kValues + i * sizeof(Bytes), word_pair(v[2 * i], v[2 * i + 1], scales.inverse));
  }
}

/// Multiplies the rows by the outliers of the columns, and adds the products to the result. weights(row, i) returns
/// element i of rows `row` to `row` + kLanes - 1.
template <class Weights>
void add_products(const DotArgs& args, const Weights& weights) {
  for (int64_t j = 0; j < args.columns; ++j) {
    const Outliers outliers = outliers_of(args.b[j], args.k);
    if (*outliers.count == 0) continue;
    for (int64_t row = 0; row < args.rows; row += kLanes) {
      F32 sums = {};
      for (int32_t i = 0; i < *outliers.count; ++i) {
        const Outlier& outlier = outliers.first[i];
        sums = multiply_add(weights(row, outlier.at), splat(outlier.value), sums);
      }
      const int64_t rows = args.rows - row < kLanes ? args.rows - row : kLanes;
      float* to = args.c[j] + args.c_row + row;
      const auto added = [&](F32 x) { return x + sums; };
      for_each(to, rows, added, to);
    }
  }
}

}  // namespace

template <class Rows>
void word_panel_from_rows(const std::byte* a, size_t a_stride, int64_t rows, int64_t k, std::byte* panel) {
  const RowLanes<Rows> lanes(a, a_stride, rows);
  for (int64_t part = 0; part < word_parts(k); ++part) {
    F32 v[32];
    for (int i = 0; i < 32; i += kLanes) {
      lanes.load(32 * part + i, k, reinterpret_cast<F32(&)[kLanes]>(v[i]));
    }
    encode(v, panel + part * Words::kBytes);
  }
}

template <class Rows>
void word_panel_from_packed(const std::byte* group, int64_t k_begin, int64_t k, std::byte* panel) {
  using Packed = PackedRows<Rows>;
  for (int64_t i = k_begin; i < k_begin + k; i += 32, panel += Words::kBytes) {
    const int64_t count = k_begin + k - i;
    const auto* from = Packed::element(group, i);
    const WordScales scales = Packed::scales(group, i);
    store(panel + Words::kScales, scales.scales);
    SHOAL_UNROLL
    for (int j = 0; j < 32; j += 2) {
      const F32 first = j < count ? Rows::load(from + j * kLanes) : F32{};
      const F32 second = j + 1 < count ? Rows::load(from + (j + 1) * kLanes) : F32{};
      store(panel + Words::kValues + j / 2 * sizeof(Bytes), word_pair(first, second, scales.inverse));
    }
  }
}

void multiply_words(const PanelArgs& args) {
  integer_tiles<Words>(args);
}

template <class Rows>
void add_outliers(const DotArgs& args) {
  using Element = typename Rows::Element;
  add_products(args, [&](int64_t row, int64_t i) {
    Element elements[kLanes] = {};
    for (int64_t r = 0; r < kLanes && row + r < args.rows; ++r) {
      elements[r] = load<Element>(args.a + (row + r) * args.a_stride + i * sizeof(Element));
    }
    return Rows::load(elements);
  });
}

template <class Rows>
void add_packed_outliers(const DotArgs& args) {
  add_products(
      args, [&](int64_t row, int64_t i) { return PackedRows<Rows>::load(args.a + row / kLanes * args.a_stride, i); });
}

size_t word_panel_bytes(int64_t k) {
  return (static_cast<size_t>(word_parts(k)) * Words::kBytes + 63) / 64 * 64;
}

#define SHOAL_INSTANTIATE(Rows)                                                                     \
  template void word_panel_from_rows<Rows>(const std::byte*, size_t, int64_t, int64_t, std::byte*); \
  template void word_panel_from_packed<Rows>(const std::byte*, int64_t, int64_t, std::byte*);       \
  template void add_outliers<Rows>(const DotArgs&);                                                 \
  template void add_packed_outliers<Rows>(const DotArgs&);
SHOAL_INSTANTIATE(RowsF16)
SHOAL_INSTANTIATE(RowsBF16)

}  // namespace shoal::cpu::SHOAL_ISA
