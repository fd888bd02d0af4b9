// Redistribution: the local nodes and the one collective that turn a tensor from one layout into another.
//
//   from      to        how
//   mirrored  split     each rank slices its runs (a view where it owns one run)
//   mirrored  partial   rank 0 keeps it, the others have zeros
//   partial   mirrored  all_reduce
//   partial   split     parts packed in rank order, reduce_scatter (shared runs: all_reduce, then slices)
//   split     mirrored  all_gather of the shards, then the runs put in order
//   held      split     by some ranks whole, and wanted by no other: slices and views of it, no collective
//   split     split     slices where every rank has what it needs already; else parts packed, all_to_all, put together
//   split     partial   zeros around the rank's own runs
//
// Worked example: f32 [8, 2] split 0 [4:{0} 2:{1} 2:{0}] to mirrored. Rank 0 sends its 12 elements, rank 1 its 4;
// the flat result is [rank 0's [6, 2] | rank 1's [2, 2]]; rows 0-3 and 4-5 of the first and 0-1 of the second are
// concatenated as 0-3 of rank 0, 0-1 of rank 1, 4-5 of rank 0.
// Packing and unpacking are ordinary slice, reshape and concat nodes: any device can run them, and the plan shows them.
#pragma once

#include <string>

#include "meta/layout/layout.h"
#include "meta/plan/local_builder.h"

namespace shoal::meta {

/// `locals` are the shards of a tensor of this shape that lies as `from`; the result are its shards under `to`.
/// Partial to or from quantised types does not exist. `name` names the steps.
Locals redistribute(LocalBuilder& builder, const Locals& locals, const Shape& shape, const Layout& from,
                    const Layout& to, const std::string& name);

/// x itself where it is contiguous, else a copy.
Tensor* as_contiguous(Graph& g, Tensor* x);

}  // namespace shoal::meta
