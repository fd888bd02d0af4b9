// Source positions of the op upsample, for the kernels of all devices. Element i of a result axis has the position
// max(i * factor + offset, 0) / divisor on the source axis. Integer division gives the element before the position, and
// the remainder gives the weight of the next element.
//
//   bilinear, from 2 to 4 elements: factor 4, offset -2, divisor 8
//   positions max(4 i - 2, 0) / 8 = 0, 1/4, 3/4, 5/4; the last position is after the last element, which has index 1
#pragma once

#include <algorithm>
#include <cstdint>

#include "graph/ops/params.h"

namespace shoal {

struct Resampling {
  int64_t factor = 1, offset = 0, divisor = 1;
};

/// `length` and `size` are the lengths of the source axis and of the result axis. Both are at least 1.
constexpr Resampling resampling_of(UpsampleMode mode, int64_t length, int64_t size) {
  if (mode == UpsampleMode::kBilinear) return {2 * length, length - size, 2 * size};
  if (mode == UpsampleMode::kCorners) return {length - 1, 0, std::max<int64_t>(size - 1, 1)};
  return {length, 0, size};
}

}  // namespace shoal
