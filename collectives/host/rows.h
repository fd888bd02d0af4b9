// The collectives that move elements without adding them: all_gather, all_to_all and broadcast. Each rank sends a row
// of elements. Every rank needs one range of elements (Stretch, possibly empty) from each row. All functions here are
// pure functions of a validated call.
//
//   all_to_all, 2 ranks, counts 1 3 | 2 0: rank 0 has a row of 4 elements; rank 0 needs [0, 1), rank 1 needs [1, 4)
#pragma once

#include <algorithm>

#include "collectives/communicator.h"

namespace shoal::collectives::host {

struct Stretch {
  int64_t begin = 0, end = 0;
  bool is_empty() const { return begin >= end; }
  int64_t size() const { return end - begin; }
};

inline Stretch common(Stretch a, Stretch b) {
  return {std::max(a.begin, b.begin), std::min(a.end, b.end)};
}

inline int64_t row_length(const Call& call, int ranks, int from) {
  return elements_in(call.kind, call.amounts(ranks), from);
}

inline int64_t longest_row(const Call& call, int ranks) {
  int64_t longest = 0;
  for (int from = 0; from < ranks; ++from) longest = std::max(longest, row_length(call, ranks, from));
  return longest;
}

/// The range of elements that rank `to` needs from the row of rank `from`.
inline Stretch needed(const Call& call, int ranks, int from, int to) {
  const Amounts amounts = call.amounts(ranks);
  int64_t begin = 0;
  if (info(call.kind).is_pairwise()) {
    for (int before = 0; before < to; ++before) begin += elements_between(call.kind, amounts, from, before);
  }
  return {begin, begin + elements_between(call.kind, amounts, from, to)};
}

/// The index at which the range from needed() starts in the output of rank `to`.
inline int64_t place_of(const Call& call, int ranks, int from, int to) {
  int64_t place = 0;
  for (int before = 0; before < from; ++before) place += elements_between(call.kind, call.amounts(ranks), before, to);
  return place;
}

}  // namespace shoal::collectives::host
