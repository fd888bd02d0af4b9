// Partial results of attention, and their merging.
//
// For each row of a tile, a segment of KV rows gives a partial result: the largest score m, the sum l of exp(score -
// m), and the sum of the values weighted by exp(score - m). Example: one segment has the scores 1 and 3, so m = 3 and l
// = e^-2 + 1. The next segment has the score 2, so m = 2 and l = 1. The merged result has m = 3 and l = e^-2 + 1 +
// e^-1.
//
// Segments are merged in a binary tree. Its nodes of level n are groups of 2^n segments, from an aligned position on.
// Example: the segments 0 to 4 give ((0 + 1) + (2 + 3)) + 4. Segments that the row does not see change no bit. So the
// bits of a result depend neither on the length of the KV axis, nor on the threads that process groups of segments.
#pragma once

#include "devices/cpu/ops/attention_shape.h"

namespace shoal::cpu {

/// The running soft-max of one row. `values` points to AttentionShape::e weighted sums.
struct Partial {
  float top = 0;            ///< -infinity if every score so far is -infinity or NaN
  float sum = 0;            ///< 0 before the first visible score; later at least 1, or NaN if a score was NaN
  float* values = nullptr;  ///< uninitialised while `sum` is 0
};
/// Merges `from` into `into`.
void merge(Partial& into, const Partial& from, int64_t e);
/// Writes values / sum to the result row. The sum includes the head's sink. If no score was visible, the row is zeros.
/// Also writes lse (the log-sum-exp) if the node has this result.
void finish(const Tensor& node, const Partial& partial, int64_t head, float* to);

/// Partial results of several rows in memory. Each result consists of top, sum and e values.
class PartialRows {
 public:
  PartialRows(float* data, int64_t e) : data_(data), e_(e) {}
  static int64_t floats(int64_t e) { return e + 2; }  ///< number of floats per result
  Partial operator[](int64_t row) const {
    float* at = data_ + row * floats(e_);
    return {at[0], at[1], at + 2};
  }
  void clear(int64_t row) const { data_[row * floats(e_) + 1] = 0; }
  void merge(int64_t row, const Partial& from) const;

 private:
  float* data_;
  int64_t e_;
};

/// Merges the partial results of consecutive groups of segments. All rows of the tile have the same groups.
class PartialTree {
 public:
  /// The added groups have 2^level segments. `scratch` points to floats() floats.
  PartialTree(const AttentionShape& shape, int64_t rows, int64_t level, float* scratch);
  static int64_t floats(const AttentionShape& shape, int64_t rows);
  /// Adds the results of a group. The indices of successive calls are consecutive. results(row) returns a Partial.
  template <class Results>
  void add(int64_t index, Results&& results) {
    if (!joins(index, level_)) clear(level_);
    for (int64_t row = 0; row < rows_; ++row) slot(level_).merge(row, results(row));
    carry(index);
  }
  /// Returns the results of all groups. No group may be added later.
  PartialRows finish();

 private:
  PartialRows slot(int64_t level) const { return {slots_[level], e_}; }
  bool joins(int64_t index, int64_t level) const { return (index & 1) != 0 && (pending_ >> level & 1) != 0; }
  void clear(int64_t level) const;
  void carry(int64_t index);

  int64_t e_, rows_, level_;
  uint64_t pending_ = 0;  ///< bit n: slot n contains a group of level n whose right neighbour was not added yet
  float* slots_[64];      ///< one result for each row
};

}  // namespace shoal::cpu
