// Collectives joined with the nodes around them: where the communicator has a kernel for the whole, an all_reduce, the
// residual add, rms_norm and the product with its weight are one call. The step of the collective then has all their
// nodes, and the Compute step begins after them. Of one row the call takes the mul_mat in front, too, whose result is
// reduced, and the Compute step before ends there:
//
//   step 0 compute       3  %y = mul_mat(%down, %h)                   step 1 all_reduce    3  %y = mul_mat(%down, %h)
//   step 1 all_reduce    4  %y.all_reduce.4 = all_reduce(%y)                               4  ... = all_reduce(%y)
//   step 2 compute       5  %r = add(%x, %y.all_reduce.4)                                  5  %r = add(...)
//                        6  %n = rms_norm(%r)                   ->                         6  %n = rms_norm(%r)
//                        7  %m = mul(%n, %w)                                               7  %m = mul(%n, %w)
//                        8  %g = mul_mat(%gate, %m)                   step 2 compute       8  %g = mul_mat(...)
//
// The sum before the norm, if anything else reads it, and the norm times its weight are still written; the other values
// must have no other reader. Which weights the mul_mat in front may have the communicator says. Part of lowering:
// memory is planned so that the nodes can run as one.
#pragma once

#include "collectives/communicator.h"
#include "meta/plan/plan.h"

namespace shoal::meta {

/// Joins what can be joined on every rank alike, within the communicator's limits.
void join_norms(Plan& plan, const collectives::FusedLimits& limits);

/// Does the step of a collective have more nodes than that?
bool is_joined(const Step& step);
/// The call of a rank whose nodes [range] are such a step's, once all tensors have their addresses. `what`: the step's
/// text, which must stay.
collectives::FusedNorm joined_norm(const Graph& graph, const NodeRange& range, const char* what);

}  // namespace shoal::meta
