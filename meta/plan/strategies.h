// The strategies of one node, given how its sources lie. See propagate.h for what they mean.
#pragma once

#include <optional>
#include <span>
#include <vector>

#include "meta/plan/propagate.h"
#include "meta/rules/rule.h"

namespace shoal::meta {

/// The legal ways to run a node, in order of preference among equals. `sources[i]` is how source i lies now (mirrored
/// where absent), `rule` that of the node, or nullptr. Never empty: the last one is "mirrored", except for set_rows,
/// which has exactly one: its cache stays where it is.
std::vector<NodeChoice> strategies(const Tensor& node, const std::vector<Layout>& sources, int ranks, const Rule* rule);

/// Dividing an output that no device needs whole, made from a mirrored weight (an output head that is the embedding
/// table too): every rank computes the stretch of the weight's outermost axis that `shares` (one for each rank, >= 0)
/// give it, and nothing has to be gathered. nullopt where that does not apply.
std::optional<NodeChoice> divided_output(const Tensor& node, const std::vector<Layout>& sources,
                                         std::span<const double> shares, const Rule* rule);

/// True when each element of the result comes from the same one of the only source, however the two are split.
bool is_by_element(const Tensor& node, const Rule* rule);

/// True when the node can take a Partial source `index` as it is.
bool passes_partial(const Tensor& node, int index, const Rule* rule);

}  // namespace shoal::meta
