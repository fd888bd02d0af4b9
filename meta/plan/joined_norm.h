// Joins a collective with neighbouring nodes into one call. A communicator with a fused kernel runs an all_reduce, the
// residual add, rms_norm and the product with the norm's weight in one call. The step of the collective then contains
// all these nodes, and the next Compute step begins after the last of these nodes. For a single row, the call also
// includes the mul_mat whose result is reduced, and the previous Compute step ends before the mul_mat:
//
//   step 0 compute       3  %y = mul_mat(%down, %h)                   step 1 all_reduce    3  %y = mul_mat(%down, %h)
//   step 1 all_reduce    4  %y.all_reduce.4 = all_reduce(%y)                               4  ... = all_reduce(%y)
//   step 2 compute       5  %r = add(%x, %y.all_reduce.4)                                  5  %r = add(...)
//                        6  %n = rms_norm(%r)                   ->                         6  %n = rms_norm(%r)
//                        7  %m = mul(%n, %w)                                               7  %m = mul(%n, %w)
//                        8  %g = mul_mat(%gate, %m)                   step 2 compute       8  %g = mul_mat(...)
//
// The call still writes the scaled norm. The sum is the input of the norm. If another node reads the sum, the call also
// writes the sum. No node outside the call may read other intermediate values. The communicator decides which weights
// the mul_mat may have. Joining is part of lowering, and memory is planned so that the nodes can run as one call.
#pragma once

#include "collectives/communicator.h"
#include "meta/plan/plan.h"

namespace shoal::meta {

/// Joins nodes within the communicator's limits, if every rank can join the same nodes.
void join_norms(Plan& plan, const collectives::FusedLimits& limits);

/// True if the step contains a collective and other nodes.
bool is_joined(const Step& step);
/// Makes a rank's call for a joined step. `range` lists the nodes of the step in the rank's graph. All tensors must
/// have their addresses. `what` is the step's text and must outlive the call.
collectives::FusedNorm joined_norm(const Graph& graph, const NodeRange& range, const char* what);

}  // namespace shoal::meta
