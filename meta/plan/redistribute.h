// Redistribution: the local nodes and the one collective that convert a tensor from one layout to another.
//
//   from      to        conversion
//   mirrored  split     each rank slices its runs (a view if it owns one run)
//   mirrored  partial   rank 0 keeps the tensor, and the other ranks have zeros
//   partial   mirrored  all_reduce
//   partial   split     packing in rank order, then reduce_scatter (shared runs: all_reduce, then slices)
//   split     mirrored  all_gather of the shards, then a concat of the runs in order
//   held      split     slices and views, because each rank that needs elements already holds the whole tensor
//   split     split     slices if every rank already has its elements; otherwise packing, all_to_all, unpacking
//   split     partial   zeros around the rank's own runs
//
// Worked example: f32 [8, 2] split 0 [4:{0} 2:{1} 2:{0}] to mirrored. Rank 0 sends its 12 elements, and rank 1 sends
// its 4 elements. The flat result is [rank 0's [6, 2] | rank 1's [2, 2]]. From this result, a concat takes rows 0-3 of
// rank 0, rows 0-1 of rank 1 and rows 4-5 of rank 0. Packing and unpacking are ordinary slice, reshape and concat
// nodes. Any device can run these nodes, and the printed plan contains them.
#pragma once

#include <string>

#include "meta/layout/layout.h"
#include "meta/plan/local_builder.h"

namespace shoal::meta {

/// Converts `locals`, the shards of a tensor of this shape, from layout `from` to layout `to`, and returns the new
/// shards. Quantised types cannot be converted to or from Partial. `name` is used in the names of the steps.
Locals redistribute(LocalBuilder& builder, const Locals& locals, const Shape& shape, const Layout& from,
                    const Layout& to, const std::string& name);

/// Returns x if x is contiguous, otherwise a contiguous copy of x.
Tensor* as_contiguous(Graph& g, Tensor* x);

}  // namespace shoal::meta
