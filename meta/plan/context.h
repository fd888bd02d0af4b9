// What plans are made from besides the graph and the devices. Plain data.
#pragma once

#include <functional>

#include "collectives/communicator.h"
#include "machine/cost_model.h"
#include "meta/layout/shards.h"
#include "meta/rules/rule.h"

namespace shoal::meta {

/// The shards of a tensor made outside the range (a leaf, or a node of an earlier range); nullptr when unknown.
using ShardLookup = std::function<const Shards*(const Tensor&)>;
/// Layout of a tensor made outside the range: a leaf, or a node of an earlier range.
using LeafLayout = std::function<Layout(const Tensor&)>;

struct PlanContext {
  /// Persistent leaves and nodes of earlier ranges must be known to it.
  ShardLookup shards;
  /// How a weight that lives elsewhere and is copied in (Tensor::copied_from) is to lie; without it every rank gets all
  /// of it, as of any other input.
  LeafLayout copied_weights = {};
  RuleLookup rules = rule_for;
  machine::CostModel costs = {};
  /// Of the communicator that the plan will run with: what it holds, and which nodes behind a collective it does with
  /// it. By default nothing.
  collectives::CommunicatorTraits communicator = {};
  /// Outputs, and nodes that are shown at a cut, are made whole on every rank, as the host that reads them may have
  /// only one of them.
  bool results_are_whole = false;
};

}  // namespace shoal::meta
