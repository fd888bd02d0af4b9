// Candidates: top_k and argmax of rows that are cut into one stretch for each rank, as those of a vocabulary-parallel
// output head are. Each rank selects the best of its stretch; these few and their places in the whole row are gathered,
// and every rank selects the same ones among them.
//
//   top_k 2 of [3 9 9 | 1 9 | 7], 3:{0} 2:{1} 1:{2}     rank 0: 9 9 at 1 2    rank 1: 9 1 at 4 3    rank 2: 7 at 5
//   gathered:  9 9 9 1 7  at  1 2 4 3 5                 the 2 best, the first of equals: positions 0 1, at 1 2
//
// Equals come out as on one device, the lower index first: stretches follow each other in the order of the row, and
// within one top_k has put the lower index first. A rank with fewer than k elements sends all it has. Places travel as
// f32 beside the values, so that there is one collective: rows of up to 2^24 elements, in which all of them are exact.
// A node that looks up what was selected (get_rows of the row's elements with these ids) takes the values that came
// along.
#pragma once

#include <optional>

#include "meta/layout/partition.h"
#include "meta/plan/local_builder.h"

namespace shoal::meta {

/// Who sends how many candidates of each row, in the order of the row, which is cut as `row` says: {2, 2, 1} above.
/// nullopt for other ops, for nothing to select, and where a rank has several stretches or shares one.
std::optional<Partition> candidates_of(const Tensor& node, const Partition& row);

/// Bytes of the candidates of all rows, with their places.
int64_t candidate_bytes(const Tensor& node, const Partition& candidates);

/// The candidates of all ranks, with which of them a node selects.
struct Selection {
  Locals gathered;   ///< f32 [candidates, 2 * rows]: values, then places
  Locals positions;  ///< i32 [k, rows]: of the selected, among the candidates
};

/// Makes the candidates on every rank from the shards of the node's source, split on axis 0 as `row` says.
Selection select_candidates(LocalBuilder& builder, const Locals& sources, const Tensor& node, const Partition& row);
/// The node's result: places in the row.
Locals selected_places(LocalBuilder& builder, const Selection& selection, const Tensor& node);
/// The result of `lookup`, get_rows with the node's places: values.
Locals selected_values(LocalBuilder& builder, const Selection& selection, const Tensor& lookup);

/// Whether the node looks up, in a row, what its ids have selected of the same row:
/// get_rows(reshape(x, {1, length, rows}), ids of x).
bool looks_up_selected(const Tensor& node);

}  // namespace shoal::meta
