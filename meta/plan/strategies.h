// The strategies of one node for given layouts of its sources. propagate.h explains them.
#pragma once

#include <optional>
#include <span>
#include <vector>

#include "meta/plan/propagate.h"
#include "meta/rules/rule.h"

namespace shoal::meta {

/// The valid strategies of a node. Among strategies of equal cost, the first strategy is preferred. `sources[i]` is the
/// current layout of source i (mirrored if the source is absent). `rule` is the rule of the node, or nullptr. The last
/// strategy is "mirrored". The only strategy of a cache write keeps the layout of the cache. The only strategy of
/// reshard converts the source to the layout of the text.
std::vector<NodeChoice> strategies(const Tensor& node, const std::vector<Layout>& sources, int ranks, const Rule* rule);

/// The strategy that splits the node so that its result has the layout `wanted` without a conversion. Returns nullopt
/// if `wanted` is not a split, or if the rule does not allow this split.
std::optional<NodeChoice> strategy_for(const Tensor& node, const Layout& wanted, const Rule* rule);

/// Divides an output that is made from a mirrored weight and that no device needs whole. An example is an output head
/// tied to the embedding table. Every rank computes a stretch of the weight's outermost axis in proportion to `shares`
/// (one share for each rank, >= 0), and nothing is gathered. Returns nullopt for any other output.
std::optional<NodeChoice> divided_output(const Tensor& node, const std::vector<Layout>& sources,
                                         std::span<const double> shares, const Rule* rule);

/// True if each element of the result depends only on the same element of the only source, for any split of the source.
bool is_by_element(const Tensor& node, const Rule* rule);

/// True if the node can take a Partial source `index` without reducing this source.
bool passes_partial(const Tensor& node, int index, const Rule* rule);

}  // namespace shoal::meta
