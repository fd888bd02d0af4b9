// Converts a global index from an id tensor to a local row (or expert) of a source; see SelectParams.
#pragma once

#include <cstdint>

#include "graph/ops/params.h"

namespace shoal {

/// The local row of a global index in a source with `rows` rows; -1 if the source does not hold this index. With the
/// ranges {10,2},{40,3}: 41 -> 3, 12 -> -1.
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
