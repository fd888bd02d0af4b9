// Collectives joined with the nodes behind them: where the communicator has a kernel for the whole, an all_reduce, the
// residual add, rms_norm and the product with its weight are one call. The step of the collective then has all their
// nodes, the Compute step begins after them, and the plan still is what runs:
//
//   step 1 all_reduce    4  %y.all_reduce.4 = all_reduce(%y)          step 1 all_reduce    4  ... = all_reduce(%y)
//   step 2 compute       5  %r = add(%x, %y.all_reduce.4)                                  5  %r = add(...)
//                        6  %n = rms_norm(%r)                   ->                         6  %n = rms_norm(%r)
//                        7  %m = mul(%n, %w)                                               7  %m = mul(%n, %w)
//                        8  %g = mul_mat(%gate, %m)                   step 2 compute       8  %g = mul_mat(...)
//
// The sum before the norm, if anything else reads it, and the product after it are still written; nobody else may read
// the values between. Whether
// it can be done depends on addresses and on the communicator, so that only a plan with memory knows.
#pragma once

#include "collectives/communicator.h"
#include "meta/plan/plan.h"

namespace shoal::meta {

/// Joins what can be joined on every rank alike. All tensors of the local graphs have their addresses.
void join_norms(Plan& plan, const collectives::Communicator& communicator);

/// Does the step of a collective have more nodes than that?
bool is_joined(const Step& step);
/// The call of a rank, for such a step. Its text is the step's.
collectives::FusedNorm joined_norm(const Plan& plan, const Step& step, int rank);

}  // namespace shoal::meta
