// Products of rows of f32, f16 or bf16 with a few f32 columns. Weights are widened to f32. Columns are never rounded.
#include "devices/cpu/kernels/dot_tiles.h"
#include "devices/cpu/kernels/weights.h"

namespace shoal::cpu::SHOAL_ISA {
namespace {

template <class Rows>
struct Tile {
  using Element = typename Rows::Element;

  template <int R, int C>
  static void run(const DotArgs& args, int64_t row, int64_t column) {
    const Element* a[R];
    const float* b[C];
    for (int r = 0; r < R; ++r) a[r] = reinterpret_cast<const Element*>(args.a + (row + r) * args.a_stride);
    for (int c = 0; c < C; ++c) b[c] = reinterpret_cast<const float*>(args.b[column + c]);
    F32 sums[R][C] = {};
    int64_t i = 0;
    for (; i + kLanes <= args.k; i += kLanes) {
      F32 values[C];
      SHOAL_UNROLL
      for (int c = 0; c < C; ++c) values[c] = load<F32>(b[c] + i);
      SHOAL_UNROLL
      for (int r = 0; r < R; ++r) {
        prefetch(a[r] + i, kLanes * sizeof(Element), R * args.a_stride);
        const F32 weights = Rows::load(a[r] + i);
        SHOAL_UNROLL
        for (int c = 0; c < C; ++c) sums[r][c] = multiply_add(weights, values[c], sums[r][c]);
      }
    }
    for (int r = 0; r < R; ++r) {
      for (int c = 0; c < C; ++c) {
        if (i < args.k) {
          const F32 weights = load_first<Rows>(a[r] + i, args.k - i);
          sums[r][c] = multiply_add(weights, load_first<RowsF32>(b[c] + i, args.k - i), sums[r][c]);
        }
        args.c[column + c][args.c_row + row + r] = sum_lanes(sums[r][c]);
      }
    }
  }
};

}  // namespace

template <class Rows>
void dot_rows(const DotArgs& args) {
  dot_tiles<Tile<Rows>>(args);
}

SHOAL_FOR_ROWS(template void dot_rows, (const DotArgs&))

}  // namespace shoal::cpu::SHOAL_ISA
