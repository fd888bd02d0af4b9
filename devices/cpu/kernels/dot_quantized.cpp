// Products of rows of quantised weights with a few quantised columns. A chunk consists of eight parts of 32 elements.
// First, the scales of the row are multiplied by the scales of the column for a whole chunk. Then each vector of
// integer sums is multiplied by the products of the scales. Each lane of integer sums covers four elements.
#include "devices/cpu/kernels/column.h"
#include "devices/cpu/kernels/dot_tiles.h"
#include "devices/cpu/kernels/weights.h"

namespace shoal::cpu::SHOAL_ISA {
namespace {

constexpr int kChunk = 8;

/// The scales, addends or sums of a chunk. There is one number per 32 elements, or one per 16 elements if kGroups is 2.
template <int kGroups>
struct Numbers {
  F32x8 v[kGroups];
};

/// Returns the first n (at most 8) floats, followed by zeros.
F32x8 first_floats(const float* from, int n) {
  if (n >= kChunk) return load<F32x8>(from);
  float values[kChunk] = {};
  for (int i = 0; i < n; ++i) values[i] = from[i];
  return load<F32x8>(values);
}

/// The scales and the scaled element sums of one chunk of a column. Entries for missing parts are zero.
template <class Format>
struct ColumnChunk {
  static constexpr int kGroups = Format::kGroups;
  Numbers<kGroups> scales, sums;

  ColumnChunk(const Column& column, int n) {
    const float* from = column.scales;
    // The integer sums are in units of 1 / 256, the unit of the fine bytes.
    const F32x8 v = (Format::kParts == kChunk ? load<F32x8>(from) : first_floats(from, n)) * (1.0f / 256.0f);
    if constexpr (kGroups == 2) {
      scales.v[0] = __builtin_shufflevector(v, v, 0, 0, 1, 1, 2, 2, 3, 3);
      scales.v[1] = __builtin_shufflevector(v, v, 4, 4, 5, 5, 6, 6, 7, 7);
    } else {
      scales.v[0] = v;
    }
    if constexpr (Format::kAdds && kGroups == 2) {
      sums = {{load<F32x8>(column.fine_half_sums), load<F32x8>(column.fine_half_sums + 8)}};
    } else if constexpr (Format::kAdds) {
      sums = {{Format::kParts == kChunk ? load<F32x8>(column.fine_sums) : first_floats(column.fine_sums, n)}};
    }
  }
};

/// The scales and addends of one chunk of a row. Entries for missing parts are zero.
template <class Format>
struct RowChunk {
  Numbers<Format::kGroups> scales, adds;
};

template <class Block, class Field>
F32x8 collect(const Block* blocks, int n, Field Block::*field) {
  Vec<Field, kChunk> scales = {};
  if (n >= kChunk) {
    SHOAL_UNROLL
    for (int i = 0; i < kChunk; ++i) scales[i] = blocks[i].*field;
  } else {
    for (int i = 0; i < n; ++i) scales[i] = blocks[i].*field;
  }
  return scales_to_float(scales);
}

template <class Format>
RowChunk<Format> row_chunk(const typename Format::Block* blocks, int n) {
  using Block = typename Format::Block;
  RowChunk<Format> chunk;
  if constexpr (Format::kParts == 1) {
    chunk.scales.v[0] = collect(blocks, n, &Block::scale);
    if constexpr (Format::kAdds) chunk.adds.v[0] = collect(blocks, n, &Block::min);
  } else if constexpr (Format::kParts == kChunk) {
    const auto scales = Format::scales(*blocks);
    for (int i = 0; i < Format::kGroups; ++i) {
      chunk.scales.v[i] = load<F32x8>(scales.scale + 8 * i);
      if constexpr (Format::kAdds) chunk.adds.v[i] = load<F32x8>(scales.add + 8 * i);
    }
  } else {
    constexpr int kNumbers = Format::kParts * Format::kGroups;  // number of scales of a block; formats in this branch
                                                                // have no addends
    float numbers[kChunk * Format::kGroups] = {};
    for (int i = 0; i * Format::kParts < n && i < kChunk / Format::kParts; ++i) {
      const auto scales = Format::scales(blocks[i]);
      __builtin_memcpy(numbers + i * kNumbers, scales.scale, sizeof scales.scale);
    }
    for (int i = 0; i < Format::kGroups; ++i) chunk.scales.v[i] = load<F32x8>(numbers + 8 * i);
  }
  return chunk;
}

/// Lanes 0 to 3 of the result are from[0]. Lanes 4 to 7 are from[1].
F32x8 splat_two(const float* from) {
  const Vec<uint64_t, 4> both = load<uint64_t>(from) - Vec<uint64_t, 4>{};
  const F32x8 v = bits_as<F32x8>(both);
  return __builtin_shufflevector(v, v, 0, 0, 0, 0, 5, 5, 5, 5);
}

/// Integer products of weights and a column. `values` contains the products with the column's values. `fine` contains
/// the products with the column's fine bytes.
struct Products {
  I32x8 values, fine;
  F32x8 total() const { return __builtin_convertvector((values << 8) + fine, F32x8); }
};

/// 32 elements of a column, for products with raw weights. Raw weights contain an offset. Each initial sum is -offset *
/// (sum of the lane's elements). The initial sum cancels the offset.
template <class Format>
struct Elements {
  I8x32 values, fine;

  /// Returns the initial sums.
  Products start() const { return {of_offset(values), of_offset(fine)}; }
  /// Adds the products with 32 weights.
  Products step(Products sum, I8x32 raw) const {
    if constexpr (Format::kOffset == kSigned) {
      return {quad_dot(sum.values, stored(raw), values), quad_dot(sum.fine, stored(raw), fine)};
    } else {
      return {small_quad_dot(sum.values, raw, values), small_quad_dot(sum.fine, raw, fine)};
    }
  }

 private:
  static I32x8 of_offset(I8x32 bytes) {
    constexpr int kOffset = Format::kOffset == kSigned ? kWeightBias : Format::kOffset;
    if constexpr (kOffset == 0) return I32x8{};
    return -small_quad_dot(I32x8{}, I8x32{} + static_cast<int8_t>(kOffset), bytes);
  }
};

/// Processes one chunk. Indices of blocks, columns and parts count from the start of the chunk. If a format provides
/// halves(), the parts are processed in pairs. Otherwise, the parts are processed one by one.
template <class Format, int R, int C>
struct Walk {
  using Block = typename Format::Block;
  using Scales = float[R][C][kChunk * Format::kGroups];

  /// Whether two parts of the same block are processed as a pair.
  static constexpr bool kPairs = requires(const Block& block) { Format::halves(block, 0); };
  static Halves halves(const Block* blocks, int part, int second) {
    if constexpr (Format::kParts == 1) {
      return Format::halves(blocks[part], blocks[second]);
    } else {
      return Format::halves(blocks[part / Format::kParts], part % Format::kParts);
    }
  }

  /// Adds the scaled products of 64 elements. If there is no second part, `second` equals `part` and the scales of the
  /// second part are zero.
  static void pair(const Block* const (&a)[R], const Column (&b)[C], const Scales& scales, int part, int second,
                   F32x8 (&sums)[R][C]) {
    Elements<Format> x[C][2];
    Products starts[C];
    SHOAL_UNROLL
    for (int c = 0; c < C; ++c) {
      const Halves values = join_halves(b[c].values + 32 * part, b[c].values + 32 * second);
      const Halves fine = join_halves(b[c].fine + 32 * part, b[c].fine + 32 * second);
      x[c][0] = {values.first, fine.first};
      x[c][1] = {values.second, fine.second};
      const Products one = x[c][0].start(), other = x[c][1].start();
      starts[c] = {one.values + other.values, one.fine + other.fine};
    }
    SHOAL_UNROLL
    for (int r = 0; r < R; ++r) {
      const Halves w = halves(a[r], part, second);
      SHOAL_UNROLL
      for (int c = 0; c < C; ++c) {
        const Products sum = x[c][1].step(x[c][0].step(starts[c], w.first), w.second);
        sums[r][c] = multiply_add(sum.total(), splat_two(scales[r][c] + part), sums[r][c]);
      }
    }
  }

  /// Adds the scaled products of one part. The block of this part has several parts.
  static void part(const Block* const (&a)[R], const Column (&b)[C], const Scales& scales, int part,
                   F32x8 (&sums)[R][C]) {
    Elements<Format> x[C];
    Products starts[C];
    SHOAL_UNROLL
    for (int c = 0; c < C; ++c) {
      x[c] = {load<I8x32>(b[c].values + 32 * part), load<I8x32>(b[c].fine + 32 * part)};
      starts[c] = x[c].start();
    }
    SHOAL_UNROLL
    for (int r = 0; r < R; ++r) {
      const I8x32 w = Format::raw(a[r][part / Format::kParts], part % Format::kParts);
      SHOAL_UNROLL
      for (int c = 0; c < C; ++c) {
        const float* of = scales[r][c] + Format::kGroups * part;
        const F32x8 scale = Format::kGroups == 2 ? splat_two(of) : splat_float<F32x8>(*of);
        sums[r][c] = multiply_add(x[c].step(starts[c], w).total(), scale, sums[r][c]);
      }
    }
  }

  /// Adds the scaled products of one part. The format stores signs and magnitudes separately. The signs are applied to
  /// the column's elements.
  template <class Signs>
  static void signed_part(const Block* const (&a)[R], const Column (&b)[C], const Scales& scales, int part,
                          const Signs (&signs)[R], F32x8 (&sums)[R][C]) {
    Elements<Format> x[C];
    SHOAL_UNROLL
    for (int c = 0; c < C; ++c) x[c] = {load<I8x32>(b[c].values + 32 * part), load<I8x32>(b[c].fine + 32 * part)};
    SHOAL_UNROLL
    for (int r = 0; r < R; ++r) {
      const I8x32 w = Format::magnitudes(*a[r], part);
      const I8x32 sign = sign_bytes(signs[r].of(part));
      SHOAL_UNROLL
      for (int c = 0; c < C; ++c) {
        const float* of = scales[r][c] + Format::kGroups * part;
        const F32x8 scale = Format::kGroups == 2 ? splat_two(of) : splat_float<F32x8>(*of);
        const I32x8 coarse = small_quad_dot_256(w, with_signs(x[c].values, sign));
        const I32x8 total = small_quad_dot(coarse, w, with_signs(x[c].fine, sign));
        sums[r][c] = multiply_add(__builtin_convertvector(total, F32x8), scale, sums[r][c]);
      }
    }
  }

  /// Processes the first n parts of a chunk. n is at most kChunk.
  static void chunk(const Block* const (&a)[R], const Column (&b)[C], const Scales& scales, int n,
                    F32x8 (&sums)[R][C]) {
    if constexpr (requires { requires Format::kSignsApart; }) {
      static_assert(Format::kParts == kChunk);  // a chunk is one block, so no part is missing
      typename Format::Signs signs[R];
      for (int r = 0; r < R; ++r) signs[r] = Format::signs(*a[r]);
      // If a number is in memory, one load broadcasts it. If a number is in a register, the broadcast needs shuffles,
      // and this loop already has many shuffles.
      in_memory(signs);
      in_memory(scales);
      SHOAL_UNROLL
      for (int i = 0; i < kChunk; ++i) signed_part(a, b, scales, i, signs, sums);
    } else if constexpr (Format::kParts == 1 || kPairs) {
      for (int i = 0; i < n; i += 2) pair(a, b, scales, i, i + 1 < n ? i + 1 : i, sums);
    } else if constexpr (Format::kParts == kChunk) {
      SHOAL_UNROLL
      for (int i = 0; i < kChunk; ++i) part(a, b, scales, i, sums);
    } else {
      for (int i = 0; i < n; ++i) part(a, b, scales, i, sums);
    }
  }
};

template <class Format>
struct Tile {
  static constexpr int kGroups = Format::kGroups;
  using Block = typename Format::Block;

  /// Multiplies the scales of the rows by the scales of the columns for a chunk of n parts. Adds the products of the
  /// rows' addends and the columns' element sums to `adds`.
  template <int R, int C>
  static void multiply_scales(const Block* const (&a)[R], const Column (&b)[C], int n, size_t ahead,
                              float (&scales)[R][C][kChunk * kGroups], F32x8 (&adds)[R][C]) {
    SHOAL_UNROLL
    for (int r = 0; r < R; ++r) {
      prefetch(a[r], kChunk / Format::kParts * sizeof(Block), ahead);
      const RowChunk<Format> row = row_chunk<Format>(a[r], n);
      SHOAL_UNROLL
      for (int c = 0; c < C; ++c) {
        const ColumnChunk<Format> column(b[c], n);
        SHOAL_UNROLL
        for (int i = 0; i < kGroups; ++i) {
          store(scales[r][c] + 8 * i, row.scales.v[i] * column.scales.v[i]);
          if constexpr (Format::kAdds) adds[r][c] = multiply_add(row.adds.v[i], column.sums.v[i], adds[r][c]);
        }
      }
    }
  }

  template <int R, int C>
  static void run(const DotArgs& args, int64_t row, int64_t column) {
    F32x8 sums[R][C] = {}, adds[R][C] = {};
    const int64_t parts = args.k / 32;
    for (int64_t first = 0; first < parts; first += kChunk) {
      const Block* a[R];
      Column b[C];
      for (int r = 0; r < R; ++r) {
        a[r] = reinterpret_cast<const Block*>(args.a + (row + r) * args.a_stride) + first / Format::kParts;
      }
      for (int c = 0; c < C; ++c) b[c] = column_at(args.b[column + c], args.k, 32 * first);
      const int n = static_cast<int>(parts - first < kChunk ? parts - first : kChunk);
      float scales[R][C][kChunk * kGroups];
      multiply_scales<R, C>(a, b, n, R * args.a_stride, scales, adds);
      Walk<Format, R, C>::chunk(a, b, scales, n, sums);
    }
    for (int r = 0; r < R; ++r) {
      for (int c = 0; c < C; ++c) args.c[column + c][args.c_row + row + r] = sum_lanes(sums[r][c] + adds[r][c]);
    }
  }
};

}  // namespace

template <class Format>
void dot(const DotArgs& args) {
  dot_tiles<Tile<Format>>(args);
}

#define SHOAL_QUANTIZED(id, ...) template void dot<id>(const DotArgs&);
#include "graph/dtypes.def"

}  // namespace shoal::cpu::SHOAL_ISA
