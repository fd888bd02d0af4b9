// The arithmetic of reductions: element-wise sums of several arrays. The arrays are added in the given order, so that
// every rank gets the same bits. f16 and bf16 elements are added in f32 and rounded once at the end. i32 sums wrap
// around.
#pragma once

#include <cstddef>
#include <span>

#include "graph/dtype.h"

namespace shoal::collectives::host {

/// For i < count, each outs[k][out_first + i] becomes sources[0][first + i] + sources[1][first + i] + ... Offsets are
/// in elements. An output may be the same array as a source if `first` and `out_first` are equal. The dtype is f32,
/// f16, bf16 or i32.
///
///   sum(kF32, {{1, 2, 3}, {10, 20, 30}}, 1, 2, {x, y}, 0)  ->  x = y = {22, 33}
void sum(DType dtype, std::span<const std::byte* const> sources, int64_t first, int64_t count,
         std::span<std::byte* const> outs, int64_t out_first);

/// Divides `count` elements into `parts` parts, and returns the index of the first element of part `part`. Each part
/// starts on a cache-line boundary, so that no two parts share a cache line.
///
///   count 100 f32, 3 parts: 7 cache lines of 16 elements -> [0, 32), [32, 64), [64, 100)
int64_t chunk_begin(DType dtype, int64_t count, int part, int parts);

}  // namespace shoal::collectives::host
