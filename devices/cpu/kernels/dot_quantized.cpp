// Rows of quantised weights times few quantised columns.
#include "devices/cpu/kernels/column.h"
#include "devices/cpu/kernels/dot_tiles.h"
#include "devices/cpu/kernels/weights.h"

namespace shoal::cpu::SHOAL_ISA {
namespace {

/// Scales of 32 elements for the eight sums of four that quad_dot gives.
template <class Format>
F32x8 scales_of(const typename Format::Scales& scales, int part) {
  if constexpr (Format::kGroups == 1) return splat_float<F32x8>(scales.scale[part]);
  const float first = scales.scale[2 * part], second = scales.scale[2 * part + 1];
  return F32x8{first, first, first, first, second, second, second, second};
}

/// total + what the addends of 32 elements add; `sums` are the column's.
template <class Format>
float with_adds(const typename Format::Scales& scales, int part, const float* sums, float total) {
  if constexpr (Format::kGroups == 1) {
    return multiply_add(scales.add[part], sums[0] + sums[1], total);
  } else {
    return multiply_add(scales.add[2 * part + 1], sums[1], multiply_add(scales.add[2 * part], sums[0], total));
  }
}

template <class Format>
struct Tile {
  using Block = typename Format::Block;

  template <int R, int C>
  static void run(const DotArgs& args, int64_t row, int64_t column) {
    const Block* a[R];
    Column b[C];
    for (int r = 0; r < R; ++r) a[r] = reinterpret_cast<const Block*>(args.a + (row + r) * args.a_stride);
    for (int c = 0; c < C; ++c) b[c] = column_at(args.b[column + c], args.k);
    F32x8 sums[R][C] = {};
    float adds[R][C] = {};
    for (int64_t i = 0; i < args.k / 32; i += Format::kParts) {
      typename Format::Scales scales[R];
      SHOAL_UNROLL
      for (int r = 0; r < R; ++r) scales[r] = Format::scales(a[r][i / Format::kParts]);
      for (int part = 0; part < Format::kParts; ++part) {
        I8x32 values[C];
        I32x8 start[C];
        SHOAL_UNROLL
        for (int c = 0; c < C; ++c) {
          values[c] = load<I8x32>(b[c].values + 32 * (i + part));
          start[c] = quad_start(values[c]);
        }
        SHOAL_UNROLL
        for (int r = 0; r < R; ++r) {
          const I8x32 weights = stored(Format::values(a[r][i / Format::kParts], part));
          SHOAL_UNROLL
          for (int c = 0; c < C; ++c) {
            const F32x8 products = __builtin_convertvector(quad_dot(start[c], weights, values[c]), F32x8);
            const F32x8 scale = scales_of<Format>(scales[r], part) * splat_float<F32x8>(b[c].scales[i + part]);
            sums[r][c] = multiply_add(products, scale, sums[r][c]);
            if constexpr (Format::kAdds) {
              adds[r][c] = with_adds<Format>(scales[r], part, b[c].sums + 2 * (i + part), adds[r][c]);
            }
          }
        }
      }
    }
    for (int r = 0; r < R; ++r) {
      for (int c = 0; c < C; ++c) args.c[column + c][args.c_row + row + r] = sum_lanes(sums[r][c]) + adds[r][c];
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
