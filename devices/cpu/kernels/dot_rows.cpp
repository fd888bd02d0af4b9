// Products of rows of quantised weights and one column. The rows are not packed. Each element of the result has the
// same operations as in panel_quantized.cpp, so both files give the same bits. A panel needs a transposition of all
// elements. Here only the sums of groups are transposed.
//
// A chunk consists of eight parts of 32 elements. The chunks of kRows rows are processed one row after another. Then
// the scaled sums of all rows are added in the order of the groups.
#include "devices/cpu/kernels/column.h"
#include "devices/cpu/kernels/formats.h"
#include "devices/cpu/kernels/prefetch.h"
#include "devices/cpu/kernels/weights.h"

namespace shoal::cpu::SHOAL_ISA {
namespace {

constexpr int kRows = 8, kChunk = 8;

/// Lane i of the result is the sum of lanes 0 to 3 of v[i]. Lane 4 + i is the sum of lanes 4 to 7 of v[i].
I32x8 sum_quarters(const I32x8 (&v)[4]) {
  const auto pairs = [](I32x8 a, I32x8 b) {
    return __builtin_shufflevector(a, b, 0, 8, 1, 9, 4, 12, 5, 13) +
           __builtin_shufflevector(a, b, 2, 10, 3, 11, 6, 14, 7, 15);
  };
  const I32x8 a = pairs(v[0], v[1]), b = pairs(v[2], v[3]);
  return __builtin_shufflevector(a, b, 0, 1, 8, 9, 4, 5, 12, 13) +
         __builtin_shufflevector(a, b, 2, 3, 10, 11, 6, 7, 14, 15);
}

/// Exchanges v[i][j] and v[j][i].
void transpose(F32x8 (&v)[8]) {
  F32x8 pairs[8], quads[8];
  SHOAL_UNROLL
  for (int i = 0; i < 8; i += 2) {
    pairs[i] = __builtin_shufflevector(v[i], v[i + 1], 0, 8, 1, 9, 4, 12, 5, 13);
    pairs[i + 1] = __builtin_shufflevector(v[i], v[i + 1], 2, 10, 3, 11, 6, 14, 7, 15);
  }
  SHOAL_UNROLL
  for (int i = 0; i < 8; i += 4) {
    SHOAL_UNROLL
    for (int j = 0; j < 2; ++j) {
      quads[i + 2 * j] = __builtin_shufflevector(pairs[i + j], pairs[i + j + 2], 0, 1, 8, 9, 4, 5, 12, 13);
      quads[i + 2 * j + 1] = __builtin_shufflevector(pairs[i + j], pairs[i + j + 2], 2, 3, 10, 11, 6, 7, 14, 15);
    }
  }
  SHOAL_UNROLL
  for (int i = 0; i < 4; ++i) {
    v[i] = __builtin_shufflevector(quads[i], quads[i + 4], 0, 1, 2, 3, 8, 9, 10, 11);
    v[i + 4] = __builtin_shufflevector(quads[i], quads[i + 4], 4, 5, 6, 7, 12, 13, 14, 15);
  }
}

/// The empty replacement for the signs of formats that store no signs apart.
struct NoSigns {};
template <class Format>
struct SignsOf {
  using Type = NoSigns;
};
template <class Format>
requires requires {
  requires Format::kSignsApart;
}
struct SignsOf<Format> {
  using Type = typename Format::Signs;
};
template <class Format>
inline constexpr bool kHasSignsApart = !std::is_same_v<typename SignsOf<Format>::Type, NoSigns>;

/// One chunk of a row. The last chunk may have fewer than kChunk parts. Its missing parts repeat the last part.
template <class Format>
class Chunk {
 public:
  using Block = typename Format::Block;
  static constexpr int kGroups = Format::kGroups, kBlocks = kChunk / Format::kParts;

  Chunk(const Block* blocks, int parts) : blocks_(blocks), last_(parts - 1) {
    if constexpr (kHasSignsApart<Format>) {
      signs_ = Format::signs(*blocks);
      // If a number is in memory, one load broadcasts it. If a number is in a register, the broadcast needs shuffles.
      in_memory(signs_);
    }
  }

  /// Computes the products of each group times the scale of the group, in the order of the groups.
  void multiply(const Column& b, F32x8 (&to)[kGroups]) const {
    const I32x8 first = multiply_parts<0>(b), second = multiply_parts<4>(b);
    I32x8 sums[kGroups];
    if constexpr (kGroups == 2) {
      sums[0] = __builtin_shufflevector(first, first, 0, 4, 1, 5, 2, 6, 3, 7);
      sums[1] = __builtin_shufflevector(second, second, 0, 4, 1, 5, 2, 6, 3, 7);
    } else {
      sums[0] = __builtin_shufflevector(first, second, 0, 1, 2, 3, 8, 9, 10, 11) +
                __builtin_shufflevector(first, second, 4, 5, 6, 7, 12, 13, 14, 15);
    }
    for (int i = 0; i < kGroups; ++i) {
      if constexpr (Format::kOffset > 0) sums[i] += starts(b, i) / kStartUnit * Format::kOffset;
      to[i] = __builtin_convertvector(sums[i], F32x8);
    }
    scale(to);
  }
  /// Returns the addends of the groups.
  void addends(F32x8 (&to)[kGroups]) const {
    if constexpr (Format::kParts == 1) {
      to[0] = collect(&Block::min);
    } else {
      const auto numbers = Format::scales(*blocks_);
      for (int i = 0; i < kGroups; ++i) to[i] = load<F32x8>(numbers.add + 8 * i);
    }
  }

 private:
  int at(int part) const { return part < last_ ? part : last_; }

  template <int kFirst>
  I32x8 multiply_parts(const Column& b) const {
    I32x8 quads[4];
    SHOAL_UNROLL
    for (int i = 0; i < 4; ++i) {
      const int part = Format::kParts == kChunk ? kFirst + i : at(kFirst + i);
      const Block& block = blocks_[part / Format::kParts];
      const I8x32 values = load<I8x32>(b.values + 32 * part);
      if constexpr (kHasSignsApart<Format>) {
        quads[i] = small_quad_dot(Format::magnitudes(block, part), with_signs(values, sign_bytes(signs_.of(part))));
      } else if constexpr (Format::kOffset == kSigned) {
        quads[i] = signed_quad_dot(Format::raw(block, part % Format::kParts), values);
      } else {
        quads[i] = small_quad_dot(Format::raw(block, part % Format::kParts), values);
      }
    }
    return sum_quarters(quads);
  }

  /// The initial sums of groups 8 i to 8 i + 7.
  I32x8 starts(const Column& b, int i) const {
    const int32_t* from = (kGroups == 2 ? b.half_starts : b.starts) + 8 * i;
    if (Format::kParts == kChunk || last_ == kChunk - 1) return load<I32x8>(from);
    I32x8 result = {};
    for (int group = 8 * i; group < kGroups * (last_ + 1) && group < 8 * i + 8; ++group) {
      result[group - 8 * i] = from[group - 8 * i];
    }
    return result;
  }

  /// Returns a field of the blocks.
  template <class Field>
  F32x8 collect(Field Block::*field) const {
    Vec<Field, kChunk> values;
    SHOAL_UNROLL
    for (int i = 0; i < kChunk; ++i) values[i] = blocks_[at(i)].*field;
    return scales_to_float(values);
  }

  void scale(F32x8 (&to)[kGroups]) const {
    if constexpr (Format::kParts == 1) {
      to[0] *= collect(&Block::scale);
    } else {
      constexpr int kNumbers = Format::kParts * kGroups;  // number of scales of a block
      float scales[kChunk * kGroups];
      for (int i = 0; i < kBlocks; ++i) {
        const auto numbers = Format::scales(blocks_[at(i * Format::kParts) / Format::kParts]);
        __builtin_memcpy(scales + i * kNumbers, numbers.scale, sizeof numbers.scale);
      }
      for (int i = 0; i < kGroups; ++i) to[i] *= load<F32x8>(scales + 8 * i);
    }
  }

  const Block* blocks_;
  int last_;
  typename SignsOf<Format>::Type signs_;
};

template <class Format>
class Rows {
 public:
  using Block = typename Format::Block;
  static constexpr int kGroups = Format::kGroups;

  /// The last rows may be equal.
  Rows(const DotArgs& args, int64_t row) : stride_(args.a_stride) {
    for (int64_t r = 0; r < kRows; ++r) {
      rows_[r] = args.a + (row + r < args.rows ? row + r : args.rows - 1) * args.a_stride;
    }
  }

  F32x8 multiply(const std::byte* column, int64_t k) const {
    F32x8 sums = {};
    for (int64_t part = 0; part < k / 32; part += kChunk) {
      const int64_t left = k / 32 - part;
      add_chunk(column_at(column, k, 32 * part), part / Format::kParts, static_cast<int>(left < kChunk ? left : kChunk),
                sums);
    }
    return sums;
  }

 private:
  /// Multiplies the chunk of `parts` parts that begins with block `block` of each row.
  void add_chunk(const Column& b, int64_t block, int parts, F32x8& sums) const {
    F32x8 scaled[kGroups][kRows], added[kGroups][kRows];
    SHOAL_NO_UNROLL
    for (int r = 0; r < kRows; ++r) {
      const auto* at = reinterpret_cast<const Block*>(rows_[r]) + block;
      prefetch(at, kChunk / Format::kParts * sizeof(Block), kRows * stride_);
      const Chunk<Format> chunk(at, parts);
      F32x8 of_row[kGroups];
      chunk.multiply(b, of_row);
      for (int i = 0; i < kGroups; ++i) scaled[i][r] = of_row[i];
      if constexpr (Format::kAdds) {
        chunk.addends(of_row);
        for (int i = 0; i < kGroups; ++i) added[i][r] = of_row[i];
      }
    }
    SHOAL_UNROLL
    for (int i = 0; i < kGroups; ++i) {
      transpose(scaled[i]);
      if constexpr (Format::kAdds) transpose(added[i]);
      SHOAL_UNROLL
      for (int j = 0; j < 8; ++j) {
        const int group = 8 * i + j;
        if (Format::kParts != kChunk && group >= kGroups * parts) return;
        sums = multiply_add(scaled[i][j], splat_float<F32x8>(b.scales[group / kGroups]), sums);
        if constexpr (Format::kAdds) {
          const float sum = kGroups == 2 ? b.half_sums[group] : b.sums[group];
          sums = multiply_add(added[i][j], splat_float<F32x8>(sum), sums);
        }
      }
    }
  }

  const std::byte* rows_[kRows];
  size_t stride_;
};

}  // namespace

template <class Format>
void dot(const DotArgs& args) {
  for (int64_t row = 0; row < args.rows; row += kRows) {
    const Rows<Format> rows(args, row);
    for (int64_t column = 0; column < args.columns; ++column) {
      const F32x8 sums = rows.multiply(args.b[column], args.k);
      for (int64_t r = 0; r < kRows && row + r < args.rows; ++r) args.c[column][args.c_row + row + r] = sums[r];
    }
  }
}

#define SHOAL_QUANTIZED(id, ...) template void dot<id>(const DotArgs&);
#include "graph/dtypes.def"

}  // namespace shoal::cpu::SHOAL_ISA
