// The arithmetic of reductions: element-wise sums of several arrays in the given order, so that every rank gets the
// same bits. f16 and bf16 are added in f32 and rounded once at the end; i32 wraps around.
#pragma once

#include <cstddef>
#include <span>

#include "graph/dtype.h"

namespace shoal::collectives::host {

/// outs[each][out_first + i] = sources[0][first + i] + sources[1][first + i] + ... for i < count; offsets in elements.
/// An output may be the same array as a source if both offsets are equal. The dtype is f32, f16, bf16 or i32.
///
///   sum(kF32, {{1, 2, 3}, {10, 20, 30}}, 1, 2, {x, y}, 0)  ->  x = y = {22, 33}
void sum(DType dtype, std::span<const std::byte* const> sources, int64_t first, int64_t count,
         std::span<std::byte* const> outs, int64_t out_first);

/// Index of the first of the `count` elements that part `part` of `parts` sums. This element is on a cache-line
/// boundary, so that no two parts write to the same line.
///
///   count 100 f32, 3 parts: 7 cache lines of 16 elements -> [0, 32), [32, 64), [64, 100)
int64_t chunk_begin(DType dtype, int64_t count, int part, int parts);

}  // namespace shoal::collectives::host
