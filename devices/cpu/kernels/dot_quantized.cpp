// Rows of quantised weights times few quantised columns. Both are walked in chunks of eight parts of 32 elements. The
// scales of a chunk are multiplied at once; then each vector of integer sums, four elements to a lane, takes its own.
#include "devices/cpu/kernels/column.h"
#include "devices/cpu/kernels/dot_tiles.h"
#include "devices/cpu/kernels/weights.h"

namespace shoal::cpu::SHOAL_ISA {
namespace {

constexpr int kChunk = 8;

/// The numbers of a chunk: one per part or, with kGroups == 2, one per 16 elements.
template <int kGroups>
struct Numbers {
  F32x8 v[kGroups];
};

/// First n (at most 8) floats, zeros behind them.
F32x8 first_floats(const float* from, int64_t n) {
  if (n >= kChunk) return load<F32x8>(from);
  float values[kChunk] = {};
  for (int64_t i = 0; i < n; ++i) values[i] = from[i];
  return load<F32x8>(values);
}

/// A column's chunk of n parts: its scales, and its sums times them. Parts that are not there get zeros.
template <class Format>
struct ColumnChunk {
  static constexpr int kGroups = Format::kGroups;
  Numbers<kGroups> scales, sums;

  ColumnChunk(const Column& column, int64_t first, int64_t n) {
    const float* from = column.scales + first;
    const F32x8 v = Format::kParts == kChunk ? load<F32x8>(from) : first_floats(from, n);
    if constexpr (kGroups == 2) {
      scales.v[0] = __builtin_shufflevector(v, v, 0, 0, 1, 1, 2, 2, 3, 3);
      scales.v[1] = __builtin_shufflevector(v, v, 4, 4, 5, 5, 6, 6, 7, 7);
    } else {
      scales.v[0] = v;
    }
    if constexpr (Format::kAdds && kGroups == 2) {
      sums = {{load<F32x8>(column.half_sums + 2 * first), load<F32x8>(column.half_sums + 2 * first + 8)}};
    } else if constexpr (Format::kAdds) {
      sums = {{Format::kParts == kChunk ? load<F32x8>(column.sums + first) : first_floats(column.sums + first, n)}};
    }
  }
};

/// Scales (and addends) of a row's chunk. Parts that are not there get zeros.
template <class Format>
struct RowChunk {
  Numbers<Format::kGroups> scales, adds;
};

template <class Block, class Field>
F32x8 collect(const Block* blocks, int64_t n, Field Block::*field) {
  Vec<uint16_t, 8> halves = {};
  if (n >= kChunk) {
    SHOAL_UNROLL
    for (int i = 0; i < kChunk; ++i) halves[i] = blocks[i].*field;
  } else {
    for (int64_t i = 0; i < n; ++i) halves[i] = blocks[i].*field;
  }
  return halves_to_float(halves);
}

template <class Format>
RowChunk<Format> row_chunk(const typename Format::Block* blocks, int64_t n) {
  using Block = typename Format::Block;
  RowChunk<Format> chunk;
  if constexpr (Format::kParts == 1) {
    chunk.scales.v[0] = collect(blocks, n, &Block::scale);
    if constexpr (Format::kAdds) chunk.adds.v[0] = collect(blocks, n, &Block::min);
  } else {
    const auto scales = Format::scales(*blocks);
    for (int i = 0; i < Format::kGroups; ++i) {
      chunk.scales.v[i] = load<F32x8>(scales.scale + 8 * i);
      if constexpr (Format::kAdds) chunk.adds.v[i] = load<F32x8>(scales.add + 8 * i);
    }
  }
  return chunk;
}

/// Four lanes of the first number, four of the second.
F32x8 splat_two(const float* from) {
  const Vec<uint64_t, 4> both = load<uint64_t>(from) - Vec<uint64_t, 4>{};
  const F32x8 v = bits_as<F32x8>(both);
  return __builtin_shufflevector(v, v, 0, 0, 0, 0, 5, 5, 5, 5);
}

/// Integer products of raw bytes: what they start from, and one step.
template <class Format>
I32x8 start(I8x32 a) {
  constexpr int kOffset = Format::kOffset == kSigned ? kWeightBias : Format::kOffset;
  if constexpr (kOffset == 0) return I32x8{};
  return -small_quad_dot(I32x8{}, I8x32{} + static_cast<int8_t>(kOffset), a);
}
template <class Format>
I32x8 step(I32x8 sum, I8x32 raw, I8x32 a) {
  if constexpr (Format::kOffset == kSigned)
    return quad_dot(sum, stored(raw), a);
  else
    return small_quad_dot(sum, raw, a);
}

/// Walks one chunk; part by part for blocks of 256 elements, and blocks of 32 elements two by two.
template <class Format, int R, int C>
struct Walk {
  using Block = typename Format::Block;
  using Scales = float[R][C][kChunk * Format::kGroups];

  /// Scaled sums of 64 elements; `second` is `first` when there is no other, whose scales then are zero.
  static void pair(const Block* const (&a)[R], const Column (&b)[C], const Scales& scales, int64_t part, int in_chunk,
                   int64_t second, F32x8 (&sums)[R][C]) {
    Halves x[C];
    I32x8 starts[C];
    SHOAL_UNROLL
    for (int c = 0; c < C; ++c) {
      const int8_t *one = b[c].values + 32 * part, *other = b[c].values + 32 * second;
      x[c].first = bits_as<I8x32>(join(load<U8x16>(one), load<U8x16>(other)));
      x[c].second = bits_as<I8x32>(join(load<U8x16>(one + 16), load<U8x16>(other + 16)));
      starts[c] = start<Format>(x[c].first) + start<Format>(x[c].second);
    }
    SHOAL_UNROLL
    for (int r = 0; r < R; ++r) {
      const Halves w = Format::halves(a[r][part], a[r][second]);
      SHOAL_UNROLL
      for (int c = 0; c < C; ++c) {
        const I32x8 sum = step<Format>(step<Format>(starts[c], w.first, x[c].first), w.second, x[c].second);
        sums[r][c] = multiply_add(__builtin_convertvector(sum, F32x8), splat_two(scales[r][c] + in_chunk), sums[r][c]);
      }
    }
  }

  /// Scaled sums of one part of a 256-element block.
  static void part(const Block* const (&a)[R], const Column (&b)[C], const Scales& scales, int64_t block, int part,
                   F32x8 (&sums)[R][C]) {
    I8x32 x[C];
    I32x8 starts[C];
    SHOAL_UNROLL
    for (int c = 0; c < C; ++c) {
      x[c] = load<I8x32>(b[c].values + 256 * block + 32 * part);
      starts[c] = start<Format>(x[c]);
    }
    SHOAL_UNROLL
    for (int r = 0; r < R; ++r) {
      const I8x32 w = Format::raw(a[r][block], part);
      SHOAL_UNROLL
      for (int c = 0; c < C; ++c) {
        const float* of = scales[r][c] + Format::kGroups * part;
        const F32x8 scale = Format::kGroups == 2 ? splat_two(of) : splat_float<F32x8>(*of);
        const I32x8 sum = step<Format>(starts[c], w, x[c]);
        sums[r][c] = multiply_add(__builtin_convertvector(sum, F32x8), scale, sums[r][c]);
      }
    }
  }

  /// Part `first` on, n parts (at most kChunk).
  static void chunk(const Block* const (&a)[R], const Column (&b)[C], const Scales& scales, int64_t first, int64_t n,
                    F32x8 (&sums)[R][C]) {
    if constexpr (Format::kParts == 1) {
      for (int i = 0; i < n; i += 2) pair(a, b, scales, first + i, i, first + (i + 1 < n ? i + 1 : i), sums);
    } else {
      SHOAL_UNROLL
      for (int i = 0; i < kChunk; ++i) part(a, b, scales, first / kChunk, i, sums);
    }
  }
};

template <class Format>
struct Tile {
  static constexpr int kGroups = Format::kGroups;
  using Block = typename Format::Block;

  /// Products of the scales of a chunk; what its addends give goes to `adds`.
  template <int R, int C>
  static void multiply_scales(const Block* const (&a)[R], const Column (&b)[C], int64_t first, int64_t n, size_t ahead,
                              float (&scales)[R][C][kChunk * kGroups], F32x8 (&adds)[R][C]) {
    SHOAL_UNROLL
    for (int r = 0; r < R; ++r) {
      const Block* blocks = a[r] + first / Format::kParts;
      prefetch(blocks, kChunk / Format::kParts * sizeof(Block), ahead);
      const RowChunk<Format> row = row_chunk<Format>(blocks, n);
      SHOAL_UNROLL
      for (int c = 0; c < C; ++c) {
        const ColumnChunk<Format> column(b[c], first, n);
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
    const Block* a[R];
    Column b[C];
    for (int r = 0; r < R; ++r) a[r] = reinterpret_cast<const Block*>(args.a + (row + r) * args.a_stride);
    for (int c = 0; c < C; ++c) b[c] = column_at(args.b[column + c], args.k);
    F32x8 sums[R][C] = {}, adds[R][C] = {};
    const int64_t parts = args.k / 32;
    for (int64_t first = 0; first < parts; first += kChunk) {
      const int64_t n = parts - first < kChunk ? parts - first : kChunk;
      float scales[R][C][kChunk * kGroups];
      multiply_scales<R, C>(a, b, first, n, R * args.a_stride, scales, adds);
      Walk<Format, R, C>::chunk(a, b, scales, first, n, sums);
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

SHOAL_FOR_FORMATS(template void dot, (const DotArgs&))

}  // namespace shoal::cpu::SHOAL_ISA
