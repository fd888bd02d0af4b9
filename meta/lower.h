// Lowering: from the choices of propagation to local graphs and steps. Each global node becomes, on every rank, the
// same op on the rank's shards with local parameters; redistributions go in just before the first node that needs
// them and are kept for later ones.
#pragma once

#include "meta/local_builder.h"
#include "meta/propagate.h"
#include "meta/shards.h"

namespace shoal::meta {

/// The shards of a tensor made outside the range (a leaf, or a node of an earlier range); nullptr when unknown.
using ShardLookup = std::function<const Shards*(const Tensor&)>;

struct Lowered {
  std::vector<std::unique_ptr<Graph>> graphs;  ///< per rank
  std::vector<Step> steps;
  /// Shards of nodes and inputs of the range.
  std::unordered_map<const Tensor*, Shards> shards;
};

/// Throws InvalidArgument when a persistent leaf has no shards.
Lowered lower(const GraphRange& range, int ranks, const Propagation& propagation, const ShardLookup& outside,
              const CostModel& model = {});

}  // namespace shoal::meta
