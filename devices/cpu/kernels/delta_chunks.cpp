// The chunk form of gated_delta. It multiplies small matrices in tiles of a few rows. Each tile stays in registers.
#include <type_traits>

#include "devices/cpu/kernels/functions.h"
#include "devices/cpu/kernels/part.h"
#include "devices/cpu/kernels/states.h"

namespace shoal::cpu::SHOAL_ISA {
namespace {

constexpr int64_t kWidth = kDeltaWidth;
constexpr int kVectors = kWidth / kLanes;
static_assert(kDeltaChunk % kWidth == 0);
/// Number of rows in a tile. With two vectors per row, a tile fills half of the registers.
constexpr int kTile = kLanes == 16 ? 8 : 4;

/// A tile of kRows rows and kWidth columns.
template <int kRows>
struct Tile {
  F32 at[kRows][kVectors] = {};

  /// at[r] += sum over x < n of a[r * a_row + x * a_step] * row x of b.
  inline void add(const float* a, int64_t a_row, int64_t a_step, const float* b, int64_t b_stride, int64_t n) {
    for (int64_t x = 0; x < n; ++x, a += a_step, b += b_stride) {
      F32 row[kVectors];
      SHOAL_UNROLL
      for (int v = 0; v < kVectors; ++v) row[v] = load<F32>(b + v * kLanes);
      SHOAL_UNROLL
      for (int r = 0; r < kRows; ++r) {
        const F32 factor = splat(a[r * a_row]);
        SHOAL_UNROLL
        for (int v = 0; v < kVectors; ++v) at[r][v] = multiply_add(factor, row[v], at[r][v]);
      }
    }
  }
  inline void add_to_row(int r, float factor, const float* b) {
    SHOAL_UNROLL
    for (int v = 0; v < kVectors; ++v) at[r][v] = multiply_add(splat(factor), load<F32>(b + v * kLanes), at[r][v]);
  }
  inline void load_rows(const float* from, int64_t stride, F32 factor) {
    SHOAL_UNROLL
    for (int r = 0; r < kRows; ++r) {
      SHOAL_UNROLL
      for (int v = 0; v < kVectors; ++v) at[r][v] = load<F32>(from + r * stride + v * kLanes) * factor;
    }
  }
  inline void store_rows(float* to, int64_t stride) const {
    SHOAL_UNROLL
    for (int r = 0; r < kRows; ++r) {
      SHOAL_UNROLL
      for (int v = 0; v < kVectors; ++v) store(to + r * stride + v * kLanes, at[r][v]);
    }
  }
};

/// Divides the rows [row, count) into tiles of kRows rows, followed by smaller tiles. Calls f(tile size as a constant,
/// first row) for each tile.
template <int kRows, class F>
inline void for_tiles(int64_t row, int64_t count, F&& f) {
  for (; row + kRows <= count; row += kRows) f(std::integral_constant<int, kRows>{}, row);
  if constexpr (kRows > 1) for_tiles<kRows / 2>(row, count, f);
}

inline float* errors_at(const DeltaChunk& args, int64_t token) {
  return args.errors + token * kWidth;
}

/// Number of columns that vector v of a row contains. The last vectors may be partly or completely unused.
inline int64_t columns_of(const DeltaChunk& args, int v) {
  const int64_t rest = args.columns - v * kLanes;
  return rest < 0 ? 0 : rest < kLanes ? rest : kLanes;
}

inline F32 load_columns(const DeltaChunk& args, const float* from, int v) {
  const int64_t n = columns_of(args, v);
  return n == kLanes ? load<F32>(from + v * kLanes) : n > 0 ? load_part(from + v * kLanes, n) : F32{};
}

inline void store_columns(const DeltaChunk& args, float* to, int v, F32 values) {
  const int64_t n = columns_of(args, v);
  if (n == kLanes) {
    store(to + v * kLanes, values);
  } else if (n > 0) {
    store_part(to + v * kLanes, values, n);
  }
}

/// Computes the errors e_r (state_ops.h) of the tile's tokens from the errors of earlier tokens.
template <int kRows>
inline void find_errors(const DeltaChunk& args, int64_t first) {
  Tile<kRows> tile;
  if (!args.begins) tile.add(args.k + first * args.k_stride, args.k_stride, 1, args.state, kWidth, args.size);
  SHOAL_UNROLL
  for (int r = 0; r < kRows; ++r) {
    const int64_t token = first + r;
    const F32 kept = splat(args.kept[token]), beta = splat(args.beta[token]);
    SHOAL_UNROLL
    for (int v = 0; v < kVectors; ++v) {
      const F32 value = load_columns(args, args.v + token * args.v_stride, v);
      tile.at[r][v] = beta * (value - kept * tile.at[r][v]);
    }
  }
  const float* weights = args.of_errors + first * kDeltaChunk;
  tile.add(weights, kDeltaChunk, 1, args.errors, kWidth, first);
  SHOAL_UNROLL
  for (int r = 0; r < kRows; ++r) {
    for (int s = 0; s < r; ++s) tile.add_to_row(r, weights[r * kDeltaChunk + first + s], errors_at(args, first + s));
    SHOAL_UNROLL
    for (int v = 0; v < kVectors; ++v) store(errors_at(args, first + r) + v * kLanes, tile.at[r][v]);
  }
}

template <int kRows>
inline void find_rows(const DeltaChunk& args, int64_t first) {
  Tile<kRows> tile;
  if (!args.begins) tile.add(args.q + first * args.q_stride, args.q_stride, 1, args.state, kWidth, args.size);
  SHOAL_UNROLL
  for (int r = 0; r < kRows; ++r) {
    SHOAL_UNROLL
    for (int v = 0; v < kVectors; ++v) tile.at[r][v] *= splat(args.kept[first + r]);
  }
  const float* weights = args.of_rows + first * kDeltaChunk;
  tile.add(weights, kDeltaChunk, 1, args.errors, kWidth, first);
  SHOAL_UNROLL
  for (int r = 0; r < kRows; ++r) {
    for (int s = 0; s <= r; ++s) tile.add_to_row(r, weights[r * kDeltaChunk + first + s], errors_at(args, first + s));
    SHOAL_UNROLL
    for (int v = 0; v < kVectors; ++v) store_columns(args, args.out + (first + r) * args.out_stride, v, tile.at[r][v]);
  }
}

/// Updates kRows rows of the state. The first of these rows is `first`. `errors` contains the tokens' errors, each
/// multiplied by the token's to_end.
template <int kRows>
inline void change_state(const DeltaChunk& args, const float* errors, int64_t first) {
  float* rows = args.state + first * kWidth;
  Tile<kRows> tile;
  if (!args.begins) tile.load_rows(rows, kWidth, splat(args.kept[args.count - 1]));
  tile.add(args.k + first, 1, args.k_stride, errors, kWidth, args.count);
  tile.store_rows(rows, kWidth);
}

}  // namespace

void delta_products(const DeltaProducts& args) {
  for_tiles<kTile>(0, args.count, [&](auto rows, int64_t first) {
    for (int64_t s = 0; s < kDeltaChunk; s += kWidth) {
      Tile<rows> tile;
      tile.add(args.rows + first * args.row_stride, args.row_stride, 1, args.columns + s, kDeltaChunk, args.size);
      tile.store_rows(args.to + first * kDeltaChunk + s, kDeltaChunk);
    }
  });
}

void delta_weights(const DeltaWeights& args) {
  float differences[kDeltaChunk] = {};
  for (int64_t r = 0; r < args.count; ++r) {
    for (int64_t s = 0; s <= r; ++s) differences[s] = static_cast<float>(args.logarithm[r] - args.logarithm[s]);
    const F32 beta = splat(-args.beta[r]);
    for (int64_t s = 0; s <= r; s += kLanes) {
      const int64_t at = r * kDeltaChunk + s;
      const F32 ratio = exp_of(load<F32>(differences + s));
      store(args.of_errors + at, beta * ratio * load<F32>(args.key_products + at));
      store(args.of_rows + at, ratio * load<F32>(args.query_products + at));
    }
  }
}

void delta_chunk(const DeltaChunk& args) {
  for_tiles<kTile>(0, args.count, [&](auto rows, int64_t first) { find_errors<rows>(args, first); });
  for_tiles<kTile>(0, args.count, [&](auto rows, int64_t first) { find_rows<rows>(args, first); });
  float* errors = errors_at(args, kDeltaChunk);
  for (int64_t s = 0; s < args.count; ++s) {
    SHOAL_UNROLL
    for (int v = 0; v < kVectors; ++v) {
      const F32 error = load<F32>(errors_at(args, s) + v * kLanes);
      store(errors + s * kWidth + v * kLanes, error * splat(args.to_end[s]));
    }
  }
  for_tiles<kTile>(0, args.size, [&](auto rows, int64_t first) { change_state<rows>(args, errors, first); });
}

}  // namespace shoal::cpu::SHOAL_ISA
