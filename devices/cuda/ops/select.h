// Maps a global index (an element of an id tensor) to a row of this device's part of a table (SelectParams). A
// Selection is a kernel parameter that is passed by value, so its number of ranges is limited. A longer list of ranges
// needs several launches, each with some of the ranges.
#pragma once

#include <algorithm>
#include <cstdint>

#include "devices/cuda/kernels/platform.h"
#include "graph/tensor.h"

namespace shoal::cuda {

struct Selection {
  static constexpr int kMost = 32;
  int64_t rows = 0;    ///< number of rows of the source
  int64_t before = 0;  ///< number of rows in the ranges of earlier launches
  int count = -1;      ///< number of ranges; -1: there are no ranges, and index i is row i
  int64_t begins[kMost], lengths[kMost];

  /// Returns the row of a global index, or -1 if the index is outside this device's ranges. Example for ranges
  /// {10,2},{40,3}: index 41 gives row 3, and index 12 gives -1.
  __device__ int64_t local(int64_t index) const {
    if (count < 0) return index >= 0 && index < rows ? index : -1;
    int64_t first = before;
#ifdef __CUDACC__
#pragma unroll 1
#endif
    for (int i = 0; i < count; ++i) {
      if (index >= begins[i] && index - begins[i] < lengths[i]) {
        const int64_t row = first + index - begins[i];
        return row < rows ? row : -1;
      }
      first += lengths[i];
    }
    return -1;
  }
};

inline Selection all_rows(int64_t rows) {
  Selection selection;
  selection.rows = rows;
  return selection;
}

/// Calls f(selection, is_first) for each launch. Usually, one launch is enough.
template <class F>
void for_selections(const SelectParams& params, int64_t rows, F&& f) {
  Selection selection = all_rows(rows);
  if (params.ranges.empty()) return f(selection, true);
  for (size_t done = 0; done < params.ranges.size(); done += Selection::kMost) {
    selection.count = static_cast<int>(std::min<size_t>(Selection::kMost, params.ranges.size() - done));
    int64_t length = 0;
    for (int i = 0; i < selection.count; ++i) {
      const IndexRange& range = params.ranges[done + static_cast<size_t>(i)];
      selection.begins[i] = range.begin;
      selection.lengths[i] = range.length;
      length += range.length;
    }
    f(selection, done == 0);
    selection.before += length;
  }
}

/// Whether each index is in the ranges of at most one launch.
inline bool can_select(const SelectParams& params) {
  const auto& ranges = params.ranges;
  if (ranges.size() <= Selection::kMost) return true;
  for (size_t i = 0; i < ranges.size(); ++i) {
    for (size_t j = 0; j < i; ++j) {
      const bool apart = ranges[i].begin >= ranges[j].begin + ranges[j].length ||
                         ranges[j].begin >= ranges[i].begin + ranges[i].length;
      if (!apart) return false;
    }
  }
  return true;
}

}  // namespace shoal::cuda
