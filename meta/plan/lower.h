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

#include "devices/backend.h"
#include "meta/layout/shards.h"
#include "meta/plan/context.h"
#include "meta/plan/local_builder.h"
#include "meta/plan/propagate.h"

namespace shoal::meta {

/// One rank's graph, cut where the range is, what of it is shown, and its late inputs (PlanOptions).
struct RankGraph {
  std::unique_ptr<Graph> graph;
  std::vector<int> cuts = {};
  std::vector<const Tensor*> shown = {};
  std::vector<LateInput> late = {};
  std::unique_ptr<Graph> zeros = {};  ///< the addends of 0 that were left out: Lowered::shards refers to them
};

struct Lowered {
  std::vector<RankGraph> locals;  ///< per rank
  std::vector<Step> steps;
  std::vector<int> segments;  ///< first step of each
  /// Shards of nodes and inputs of the range.
  std::unordered_map<const Tensor*, Shards> shards;
};

/// `inputs` says how inputs of the range lie; the context is that of the propagation. Of the options cuts, shown nodes
/// and late inputs count. Throws InvalidArgument when a persistent leaf has no shards.
Lowered lower(const GraphRange& range, int ranks, const Propagation& propagation, const LeafLayout& inputs,
              const PlanContext& context, const PlanOptions& options = {});

}  // namespace shoal::meta
