#include "meta/plan/strategies.h"

#include <algorithm>
#include <numeric>

#include "base/error.h"
#include "graph/text.h"
#include "meta/layout/layout.h"
#include "meta/plan/candidates.h"

namespace shoal::meta {
namespace {

using Layouts = std::vector<Layout>;

std::vector<Layout> all_mirrored(const Tensor& node) {
  return Layouts(node.src.size(), Layout::mirrored());
}

NodeChoice mirrored(const Tensor& node) {
  return {all_mirrored(node), Layout::mirrored(), -1, {}};
}

/// Splits one factor of the rule; nullopt if an operand cannot be split in this way.
std::optional<NodeChoice> split_strategy(const Tensor& node, const Rule& rule, const FactorSplit& split) {
  const auto result = result_layout(rule, split.factor, split.partition);
  if (!result) return std::nullopt;
  NodeChoice choice{all_mirrored(node), *result, split.factor, split.partition};
  for (size_t i = 0; i < node.src.size(); ++i) {
    if (node.src[i] == nullptr) continue;
    const auto layout = operand_layout(rule, split.factor, split.partition, rule.sources[i]);
    if (!layout) return std::nullopt;
    choice.sources[i] = *layout;
  }
  return choice;
}

/// A factor that is not in the result is summed, so each of its elements must be on one rank only.
FactorSplit disjoint_if_summed(const Rule& rule, FactorSplit split) {
  const auto& axes = rule.result.axes;
  const bool in_result =
      std::any_of(axes.begin(), axes.end(), [&](const AxisTerm& term) { return term.factor == split.factor; });
  if (!in_result) split.partition = split.partition.disjoint();
  return split;
}

/// Shares of a divided output are multiples of this length, so that they fill whole cache lines and vector registers.
constexpr int64_t kOutputUnit = 32;

/// Returns a split on axis `axis` that describes the same shards as `layout`. Every device must hold either the whole
/// tensor or nothing.
Layout relabelled(const Layout& layout, const Shape& shape, int axis) {
  return Layout::split(axis, Partition(layout.partition.devices(), {{shape[axis], *layout.holders()}}));
}

/// All layouts that describe the same shards of a source. Several such layouts exist only if each device holds the
/// whole source or nothing. A weight keeps its axis, because the callback chooses this axis to decide how the weight's
/// products are divided.
Layouts equivalents(const Layout& layout, const Tensor& source) {
  if (layout.holders() == nullptr || is_weight(*source.storage())) return {layout};
  Layouts out;
  for (int axis = 0; axis < kMaxDims; ++axis) out.push_back(relabelled(layout, source.shape, axis));
  return out;
}

void add_splits(const Tensor& node, const Rule& rule, const Layouts& sources, std::vector<NodeChoice>& out) {
  std::vector<FactorSplit> seen;
  const auto add = [&](int source, const Layout& layout) {
    auto split = factor_split(rule, rule.sources[source], layout);
    if (!split) return;
    *split = disjoint_if_summed(rule, *split);
    const bool known = std::any_of(seen.begin(), seen.end(), [&](const FactorSplit& other) {
      return other.factor == split->factor && other.partition == split->partition;
    });
    if (known) return;
    if (auto strategy = split_strategy(node, rule, *split)) out.push_back(std::move(*strategy));
    seen.push_back(std::move(*split));
  };
  for (size_t i = 0; i < node.src.size(); ++i) {
    if (node.src[i] == nullptr || !sources[i].is_split()) continue;
    for (const Layout& layout : equivalents(sources[i], *node.src[i])) add(static_cast<int>(i), layout);
  }
}

void add_linear(const Tensor& node, const Rule& rule, const Layouts& sources, std::vector<NodeChoice>& out) {
  for (const std::vector<int>& set : rule.linear) {
    const bool wanted = std::any_of(set.begin(), set.end(), [&](int i) { return sources[i].is_partial(); });
    if (!wanted) continue;
    NodeChoice choice{all_mirrored(node), Layout::partial(), -1, {}};
    for (int i : set) choice.sources[i] = Layout::partial();
    out.push_back(std::move(choice));
  }
}

/// Selects by candidates (candidates.h) if the candidates have fewer bytes than the split rows. If a stretch has
/// several owners, only the first owner selects from the stretch.
void add_candidates(const Tensor& node, const Layouts& sources, std::vector<NodeChoice>& out) {
  if (sources.empty() || !sources[0].is_split(0)) return;
  const Partition row = sources[0].partition.disjoint();
  const auto candidates = candidates_of(node, row);
  if (!candidates || candidate_bytes(node, *candidates) >= static_cast<int64_t>(node.src[0]->bytes())) return;
  NodeChoice choice{{Layout::split(0, row)}, Layout::mirrored(), -1, row};
  choice.by_candidates = true;
  out.push_back(std::move(choice));
}

std::vector<NodeChoice> view_strategies(const Tensor& node, const Layout& source) {
  const auto layout = view_layout(node, source);
  std::vector<NodeChoice> out;
  if (layout) out.push_back({{source}, *layout, -1, {}});
  out.push_back(mirrored(node));
  return out;
}

/// Splits along the concatenated axis. Each split source keeps its runs. Each unsplit source becomes one run that all
/// ranks own.
std::optional<NodeChoice> concat_along(const Tensor& node, const Layouts& sources, int axis, int ranks) {
  Owners all_ranks(ranks);
  for (int rank = 0; rank < ranks; ++rank) all_ranks[rank] = rank;
  Layouts needed = sources;
  std::vector<Partition> parts;
  for (size_t i = 0; i < sources.size(); ++i) {
    const int64_t length = node.src[i]->shape[axis];
    if (!sources[i].is_split(axis)) {
      std::vector<Run> run;
      if (length > 0) run.push_back({length, all_ranks});
      needed[i] = Layout::split(axis, Partition(ranks, std::move(run)));
    }
    parts.push_back(needed[i].partition);
  }
  Partition whole = Partition::concat(parts);
  return NodeChoice{std::move(needed), Layout::split(axis, std::move(whole)), -1, {}};
}

std::vector<NodeChoice> concat_strategies(const Tensor& node, Layouts sources, int ranks) {
  const int axis = std::get<ConcatParams>(node.params).axis;
  for (size_t i = 0; i < sources.size(); ++i) {
    if (sources[i].holders() != nullptr) sources[i] = relabelled(sources[i], node.src[i]->shape, axis);
  }
  std::vector<NodeChoice> out;
  bool any_partial = false, any_along = false;
  for (const Layout& layout : sources) {
    any_partial |= layout.is_partial();
    any_along |= layout.is_split(axis);
    if (!layout.is_split() || layout.axis == axis) continue;
    const auto is_same = [&](const NodeChoice& other) { return other.result == layout; };
    if (std::none_of(out.begin(), out.end(), is_same)) out.push_back({Layouts(sources.size(), layout), layout, -1, {}});
  }
  if (any_along) out.push_back(*concat_along(node, sources, axis, ranks));
  if (any_partial) out.push_back({Layouts(sources.size(), Layout::partial()), Layout::partial(), -1, {}});
  out.push_back(mirrored(node));
  return out;
}

/// A cache write is in place, so the layout of the cache determines the layouts of rows and ids. If the cache is
/// Partial, each rank writes its addend of Partial rows. If the cache rounds the rows, the addends of the rows are
/// summed before the write, as for cast. Then rank 0 writes the sum and the other ranks write zeros.
std::vector<NodeChoice> write_strategies(const Tensor& node, const Rule& rule, const Layouts& sources) {
  const Layout& cache = sources[0];
  NodeChoice choice{all_mirrored(node), cache, -1, {}};
  choice.sources[0] = cache;
  if (cache.is_partial() && node.dtype == node.src[1]->dtype) choice.sources[1] = Layout::partial();
  if (!cache.is_split()) return {std::move(choice)};
  const auto split = factor_split(rule, rule.sources[0], cache);
  auto strategy = split ? split_strategy(node, rule, *split) : std::nullopt;
  require<InvalidArgument>(strategy.has_value(),
                           "the sharding rule '{}' of '{}' does not allow the layout {} of the cache", to_string(rule),
                           shoal::to_string(node), cache.to_string());
  return {std::move(*strategy)};
}

}  // namespace

std::vector<NodeChoice> strategies(const Tensor& node, const Layouts& sources, int ranks, const Rule* rule) {
  if (node.op == Op::kReshard) {
    const Layout layout = layout_of_reshard(node, ranks);
    return {{{layout}, layout, -1, {}}};
  }
  if (is_view(node.op)) return view_strategies(node, sources[0]);
  if (node.op == Op::kConcat) return concat_strategies(node, sources, ranks);
  std::vector<NodeChoice> out;
  if (rule != nullptr) {
    if (info(node.op).alias == Alias::kWrites) return write_strategies(node, *rule, sources);
    add_splits(node, *rule, sources, out);
    add_linear(node, *rule, sources, out);
    add_candidates(node, sources, out);
  }
  out.push_back(mirrored(node));
  return out;
}

std::optional<NodeChoice> strategy_for(const Tensor& node, const Layout& wanted, const Rule* rule) {
  if (!wanted.is_split() || info(node.op).alias == Alias::kWrites) return std::nullopt;
  if (node.op == Op::kConcat) {
    const int axis = std::get<ConcatParams>(node.params).axis;
    NodeChoice choice{{}, wanted, -1, {}};
    int64_t begin = 0;
    for (const Tensor* source : node.src) {
      const int64_t length = source->shape[axis];
      choice.sources.push_back(*slice_layout(wanted, {axis, begin, length}));
      begin += length;
    }
    return choice;
  }
  if (rule == nullptr) return std::nullopt;
  const auto split = factor_split(*rule, rule->result, wanted);
  if (!split) return std::nullopt;
  auto strategy = split_strategy(node, *rule, *split);
  return strategy && strategy->result == wanted ? std::move(strategy) : std::nullopt;
}

std::optional<NodeChoice> divided_output(const Tensor& node, const Layouts& sources, std::span<const double> shares,
                                         const Rule* rule) {
  if (is_view(node.op) || node.op == Op::kConcat || info(node.op).alias == Alias::kWrites) return std::nullopt;
  if (rule == nullptr) return std::nullopt;
  for (size_t i = 0; i < node.src.size(); ++i) {
    const Tensor* source = node.src[i];
    if (source == nullptr || !is_weight(*source) || !sources[i].is_mirrored()) continue;
    int axis = kMaxDims - 1;
    while (axis > 0 && source->shape[axis] == 1) --axis;
    const AxisTerm& term = rule->sources[i].axes[axis];
    if (term.factor < 0 || Rule::axis_of(rule->result, term.factor) < 0) continue;
    const Factor& factor = rule->factors[term.factor];
    if (factor.length < 2 * kOutputUnit * static_cast<int64_t>(shares.size())) continue;
    const FactorSplit split{term.factor,
                            Partition::by_ratio(factor.length, std::lcm(kOutputUnit, factor.unit), shares)};
    if (auto strategy = split_strategy(node, *rule, split)) return strategy;
  }
  return std::nullopt;
}

bool is_by_element(const Tensor& node, const Rule* rule) {
  if (rule == nullptr || node.src.size() != 1 || rule->sources[0].axes != rule->result.axes) return false;
  return std::all_of(rule->factors.begin(), rule->factors.end(),
                     [](const Factor& factor) { return factor.kind == FactorKind::kParallel; });
}

bool passes_partial(const Tensor& node, int index, const Rule* rule) {
  if (is_view(node.op) || node.op == Op::kConcat) return true;
  if (rule == nullptr) return false;
  return std::any_of(rule->linear.begin(), rule->linear.end(),
                     [&](const std::vector<int>& set) { return std::count(set.begin(), set.end(), index) > 0; });
}

}  // namespace shoal::meta
