// Candidates: top_k and argmax of rows that are split into one stretch for each rank, as in a vocabulary-parallel
// output head. Each rank selects the best elements of its stretch. These few values and their indices in the whole row
// are gathered. Then every rank selects the same values from the gathered values.
//
//   top_k 2 of [3 9 9 | 1 9 | 7], 3:{0} 2:{1} 1:{2}     rank 0: 9 9 at 1 2    rank 1: 9 1 at 4 3    rank 2: 7 at 5
//   gathered:  9 9 9 1 7  at  1 2 4 3 5                 selected: gathered positions 0 1, which are indices 1 2
//
// Equal values are ordered by ascending index, as on one device, because the stretches are in row order and top_k
// orders each stretch. A rank with fewer than k elements sends all its elements. The indices are sent as f32 next to
// the values, so one collective is enough. Rows may have up to 2^24 elements, the limit of exact whole numbers in f32.
// A node that looks up the selected elements (get_rows of the row's elements with the selected ids) uses the gathered
// values.
#pragma once

#include <optional>

#include "meta/layout/partition.h"
#include "meta/plan/local_builder.h"

namespace shoal::meta {

/// Number of candidates that each rank sends per row, in row order: {2, 2, 1} in the example. `row` is the partition of
/// the row. Returns nullopt if the op is not top_k or argmax, if nothing is selected, if a row has more than 2^24
/// elements, or if a rank has several stretches or shares a stretch.
std::optional<Partition> candidates_of(const Tensor& node, const Partition& row);

/// Number of bytes of the candidates of all rows, including the indices of the candidates.
int64_t candidate_bytes(const Tensor& node, const Partition& candidates);

/// The candidates of all ranks, and the positions of the candidates that a node selects.
struct Selection {
  Locals gathered;   ///< f32 [candidates, 2 * rows]: values, then indices
  Locals positions;  ///< i32 [k, rows]: selected positions among the candidates
};

/// On every rank, adds nodes that compute the candidates from the node's source. This source is split on axis 0 by
/// `row`.
Selection select_candidates(LocalBuilder& builder, const Locals& sources, const Tensor& node, const Partition& row);
/// The node's result: the indices of the selected elements in the row.
Locals selected_places(LocalBuilder& builder, const Selection& selection, const Tensor& node);
/// The result of `lookup`, a get_rows with the node's indices: the selected values.
Locals selected_values(LocalBuilder& builder, const Selection& selection, const Tensor& lookup);

/// True if the node looks up elements of a row with ids that were selected from the same row: get_rows(reshape(x, {1,
/// length, rows}), ids of x).
bool looks_up_selected(const Tensor& node);

}  // namespace shoal::meta
