// Lowering: turns the choices of propagation into local graphs and steps. On every rank, each global node becomes the
// same op with local parameters. The op runs on the shards of the rank. A redistribution is inserted just before the
// first node that needs it, and later nodes reuse its result.
//
// Worked example, the feed-forward of propagate.h. Each rank gets these nodes for its own shards:
//   step 0 compute       0  %g = mul_mat(%gate, %x)        # f32 [384, 4]      the shard of gate is [256, 384]
//                        1  %u = mul_mat(%up, %x)          # f32 [384, 4]
//                        2  %h = glu(%g, %u)               # f32 [384, 4]
//                        3  %y = mul_mat(%down, %h)        # f32 [256, 4]      an addend of y
//   step 1 all_reduce    4  %y.all_reduce.4 = all_reduce(%y)                   the sum, on every rank
//   step 2 compute       5  %r = add(%x, %y.all_reduce.4)
//                        6  %n = rms_norm(%r)
// On a rank without experts, the addend of a partial sum is zero. So the local graph of this rank omits products that
// are zero, and the nodes that depend on these products. An addition with one zero operand is replaced by the other
// operand. Zeros are created only if a remaining node reads them.
//
// `local_text` of plan.h prints the local graph of any plan and rank.
#pragma once

#include "meta/plan/plan.h"

namespace shoal::meta {

/// Sets the plan's steps and segments, and the shards of the nodes and inputs of the range. For each rank, sets the
/// local graph with its cuts, shown nodes, late inputs and zeros (see RankPlan). `inputs` returns the layouts of
/// inputs. The context must be the same as for the propagation. Only the cuts, shown nodes and late inputs of `options`
/// are used. Adds the conversions of constrained tensors to the entries of Plan::constraints. Throws InvalidArgument if
/// a persistent leaf has no shards, or if a node that must be mirrored has another required layout.
void lower(const GraphRange& range, int ranks, const Propagation& propagation, const LeafLayout& inputs,
           const PlanContext& context, const PlanOptions& options, Plan& plan);

}  // namespace shoal::meta
