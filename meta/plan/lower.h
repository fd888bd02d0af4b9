// Lowering: from the choices of propagation to local graphs and steps. Each global node becomes, on every rank, the
// same op on the rank's shards with local parameters; redistributions go in just before the first node that needs
// them and are kept for later ones.
//
// Worked example, the feed-forward of propagate.h; both ranks get the same nodes, on their shards:
//   step 0 compute       0  %g = mul_mat(%gate, %x)        # f32 [384, 4]      gate [256, 384] here
//                        1  %u = mul_mat(%up, %x)          # f32 [384, 4]
//                        2  %h = glu(%g, %u)               # f32 [384, 4]
//                        3  %y = mul_mat(%down, %h)        # f32 [256, 4]      an addend of y
//   step 1 all_reduce    4  %y.all_reduce.4 = all_reduce(%y)                   the sum, everywhere
//   step 2 compute       5  %r = add(%x, %y.all_reduce.4)
//                        6  %n = rms_norm(%r)
// A rank whose addend of a partial sum is 0, as it has none of the experts, has no node there: products of nothing, and
// what is made of them, are left out, and a sum is its other addend. Zeros are made where something else reads them.
//
// `local_text` of plan.h prints this for any plan and rank.
#pragma once

#include "meta/plan/plan.h"

namespace shoal::meta {

/// Gives the plan its steps and segments, the shards of nodes and inputs of the range, and for each rank the local
/// graph with its cuts, shown nodes, late inputs and zeros. `inputs` says how inputs of the range lie; the context is
/// that of the propagation. Of the options cuts, shown nodes and late inputs count. Throws InvalidArgument when a
/// persistent leaf has no shards.
void lower(const GraphRange& range, int ranks, const Propagation& propagation, const LeafLayout& inputs,
           const PlanContext& context, const PlanOptions& options, Plan& plan);

}  // namespace shoal::meta
