// Multiplies packed groups by a few columns. Weights are read from memory once, at consecutive addresses. Each lane of
// a vector belongs to one row, so no sum crosses lanes.
#include "devices/cpu/kernels/column.h"
#include "devices/cpu/kernels/dot_tiles.h"
#include "devices/cpu/kernels/packed_formats.h"
#include "devices/cpu/kernels/weights.h"

namespace shoal::cpu::SHOAL_ISA {
namespace {

// Prefetch distance in bytes. A distance of two pages hides the memory latency at full bandwidth.
constexpr size_t kAhead = 8192;

template <class Format>
struct Quantized {
  static constexpr int kGroups = Format::kGroups, kQuads = 8 / kGroups;
  using Layout = PackedLayout<Format>;

  static I32 step(I32 sum, Bytes weights, Bytes column) {
    if constexpr (Format::kOffset == kSigned) return quad_dot(sum, weights, column);
    return small_quad_dot(sum, weights, column);
  }

  /// For every row, returns 256 times the dot product of group g of the weights and the 16-bit elements of a column.
  static I32 products(const Bytes (&weights)[8], const Column& b, int64_t part, int g) {
    constexpr int kOffset = kPackedOffset<Format>;
    I32 values = {};
    I32 fine = kOffset == 0 ? I32{} : splat(-kOffset * (kGroups == 2 ? b.half_totals[2 * part + g] : b.totals[part]));
    SHOAL_UNROLL
    for (int i = g * kQuads; i < (g + 1) * kQuads; ++i) {
      values = step(values, weights[i], splat_quad(b.values + 32 * part + 4 * i));
      fine = step(fine, weights[i], splat_quad(b.fine + 32 * part + 4 * i));
    }
    return (values << 8) + fine;
  }

  template <int C>
  static void part(const PackedReader<Format>& reader, int in_unit, int64_t part, const Column (&b)[C], F32 (&sums)[C],
                   F32 (&added)[C]) {
    Bytes weights[8];
    F32 scales[kGroups], adds[kGroups];
    reader.values(in_unit, weights);
    reader.scales(in_unit, scales, adds);
    SHOAL_UNROLL
    for (int c = 0; c < C; ++c) {
      F32 scaled = to_float(products(weights, b[c], part, 0)) * scales[0];
      if constexpr (kGroups == 2) scaled = multiply_add(to_float(products(weights, b[c], part, 1)), scales[1], scaled);
      sums[c] = multiply_add(scaled, splat(b[c].scales[part]), sums[c]);
      if constexpr (Format::kAdds) {
        SHOAL_UNROLL
        for (int g = 0; g < kGroups; ++g) {
          const float sum = kGroups == 2 ? b[c].fine_half_sums[2 * part + g] : b[c].fine_sums[part];
          added[c] = multiply_add(adds[g], splat(sum), added[c]);
        }
      }
    }
  }

  template <int C>
  static void run(const DotArgs& args, const std::byte* unit, int64_t column, F32 (&sums)[C]) {
    Column b[C];
    for (int c = 0; c < C; ++c) b[c] = column_at(args.b[column + c], args.k);
    F32 added[C] = {};
    const int64_t parts = args.k / 32;
    int64_t first = 0;
    for (; first + Layout::kParts <= parts; first += Layout::kParts, unit += Layout::kBytes) {
      const PackedReader<Format> reader(unit);
      SHOAL_UNROLL
      for (int i = 0; i < Layout::kParts; ++i) {
        if (i % 2 == 0) {
          // A few cache lines are prefetched before every second part. If a whole large unit were prefetched at once,
          // later loads would wait.
          constexpr size_t kLines = (Layout::kBytes + 32 * Layout::kParts - 1) / (32 * Layout::kParts);
          prefetch(unit + i / 2 * kLines * 64, kLines * 64, kAhead);
          keep_order();
        }
        part<C>(reader, i, first + i, b, sums, added);
      }
    }
    for (int i = 0; first + i < parts; ++i) part<C>(PackedReader<Format>(unit), i, first + i, b, sums, added);
    for (int c = 0; c < C; ++c) sums[c] = multiply_add(sums[c], splat(1.0f / 256.0f), added[c]);
  }
};

template <class Rows>
struct Floats {
  using Element = typename Rows::Element;
  static constexpr int kChains = 4;  // number of independent sums per column

  template <int C>
  static void run(const DotArgs& args, const std::byte* group, int64_t column, F32 (&sums)[C]) {
    const auto* a = reinterpret_cast<const Element*>(group);
    const float* b[C];
    for (int c = 0; c < C; ++c) b[c] = reinterpret_cast<const float*>(args.b[column + c]);
    F32 chains[C][kChains] = {};
    int64_t i = 0;
    for (; i + kChains <= args.k; i += kChains) {
      prefetch(a + i * kLanes, kChains * kLanes * sizeof(Element), kAhead);
      SHOAL_UNROLL
      for (int j = 0; j < kChains; ++j) {
        const F32 weights = Rows::load(a + (i + j) * kLanes);
        SHOAL_UNROLL
        for (int c = 0; c < C; ++c) chains[c][j] = multiply_add(weights, splat(b[c][i + j]), chains[c][j]);
      }
    }
    for (int j = 0; i < args.k; ++i, ++j) {
      const F32 weights = Rows::load(a + i * kLanes);
      for (int c = 0; c < C; ++c) chains[c][j] = multiply_add(weights, splat(b[c][i]), chains[c][j]);
    }
    for (int c = 0; c < C; ++c) sums[c] = (chains[c][0] + chains[c][2]) + (chains[c][1] + chains[c][3]);
  }
};

template <class Kind, int C>
void columns(const DotArgs& args, const std::byte* group, int64_t row, int64_t column) {
  F32 sums[C] = {};
  Kind::template run<C>(args, group, column, sums);
  const int64_t rows = args.rows - row;
  for (int c = 0; c < C; ++c) {
    float* to = args.c[column + c] + args.c_row + row;
    if (rows >= kLanes) {
      store(to, sums[c]);
    } else {
      store_first(to, sums[c], rows);
    }
  }
}

template <class Kind>
void dot_groups(const DotArgs& args) {
  const std::byte* group = args.a;
  for (int64_t row = 0; row < args.rows; row += kLanes, group += args.a_stride) {
    int64_t column = 0;
    for (; column + 2 <= args.columns; column += 2) columns<Kind, 2>(args, group, row, column);
    if (column < args.columns) columns<Kind, 1>(args, group, row, column);
  }
}

}  // namespace

template <class Format>
void packed_dot(const DotArgs& args) {
  dot_groups<Quantized<Format>>(args);
}

template <class Rows>
void packed_dot_rows(const DotArgs& args) {
  dot_groups<Floats<Rows>>(args);
}

#define SHOAL_QUANTIZED(id, ...) template void packed_dot<id>(const DotArgs&);
#define SHOAL_QUANTIZED_CODED(...)
#include "graph/dtypes.def"
template void packed_dot<NVFP4>(const DotArgs&);
SHOAL_FOR_ROWS(template void packed_dot_rows, (const DotArgs&))

}  // namespace shoal::cpu::SHOAL_ISA
