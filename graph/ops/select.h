// From the global index in an id tensor to a row (expert) of the part that a device has; see SelectParams.
#pragma once

#include <cstdint>

#include "graph/ops/params.h"

namespace shoal {

/// Row of a source with `rows` rows for a global index, -1 when the index is not here. Ranges {10,2},{40,3}:
/// 41 -> 3, 12 -> -1.
inline int64_t local_index(const SelectParams& params, int64_t rows, int64_t index) {
  if (params.ranges.empty()) return index >= 0 && index < rows ? index : -1;
  int64_t before = 0;
  for (const IndexRange& range : params.ranges) {
    if (index >= range.begin && index < range.begin + range.length) {
      const int64_t local = before + index - range.begin;
      return local < rows ? local : -1;
    }
    before += range.length;
  }
  return -1;
}

}  // namespace shoal
