// The order of argsort and top_k: by value, then by index; NaN counts as less than everything. A total order, so
// that any sorting algorithm gives the same, stable result without memory of its own.
#pragma once

#include <cstdint>

#include "devices/cpu/ops/rows.h"

namespace shoal::cpu {

struct Before {
  const float* values;
  bool descending;
  /// Does index a come before index b?
  bool operator()(int32_t a, int32_t b) const {
    const float x = values[a], y = values[b];
    if (descending ? greater(x, y) : greater(y, x)) return true;
    if (descending ? greater(y, x) : greater(x, y)) return false;
    return a < b;
  }
  static bool greater(float x, float y) { return x > y || (y != y && x == x); }
};

/// Scratch for whole_row: none when rows can be used where they are.
inline size_t whole_row_bytes(const Tensor& x) {
  return is_direct(x) ? 0 : (x.shape[0] * sizeof(float) + 63) / 64 * 64;
}

/// A whole row as f32, in this part's place in the workspace when it has to be converted.
inline const float* whole_row(const TeamContext& ctx, const Tensor& x, const std::byte* row) {
  const size_t bytes = whole_row_bytes(x);
  auto* scratch = reinterpret_cast<float*>(bytes ? ctx.workspace + ctx.part * bytes : nullptr);
  return load(x, row, 0, x.shape[0], scratch);
}

}  // namespace shoal::cpu
