// Converts global indices to local rows (or experts) of a source; see SelectParams and SetSliceParams.
#pragma once

#include <algorithm>
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

/// A stretch of indices that set_slice writes: the new values [from, from + length) become the indices
/// [to, to + length) of the cache.
struct WrittenRun {
  int64_t from = 0, to = 0, length = 0;
};

/// Calls f(WrittenRun) for each stretch of the `count` new values that the cache holds. With begin 11, 30 new values
/// and the ranges {10,2},{40,3}: {0, 1, 1} and {29, 2, 1}.
template <class F>
void for_written_runs(const SetSliceParams& params, int64_t count, F&& f) {
  if (params.ranges.empty()) return f(WrittenRun{0, params.begin, count});
  int64_t before = 0;
  for (const IndexRange& range : params.ranges) {
    const int64_t first = std::max(params.begin, range.begin);
    const int64_t last = std::min(params.begin + count, range.begin + range.length);
    if (first < last) f(WrittenRun{first - params.begin, before + first - range.begin, last - first});
    before += range.length;
  }
}

/// Whether each stretch consists of whole blocks of `block` elements, and no index is in two ranges.
inline bool can_write_runs(const SetSliceParams& params, int64_t count, int64_t block) {
  bool can = true;
  for_written_runs(params, count, [&](const WrittenRun& run) {
    can = can && run.from % block == 0 && run.to % block == 0 && run.length % block == 0;
  });
  std::vector<IndexRange> ranges = params.ranges;
  std::sort(ranges.begin(), ranges.end(), [](const auto& a, const auto& b) { return a.begin < b.begin; });
  for (size_t i = 1, last = 0; i < ranges.size(); ++i) {
    if (ranges[i].length == 0) continue;
    can = can && (ranges[last].length == 0 || ranges[i].begin >= ranges[last].begin + ranges[last].length);
    last = i;
  }
  return can;
}

}  // namespace shoal
