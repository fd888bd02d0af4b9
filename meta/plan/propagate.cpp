#include "meta/plan/propagate.h"

#include <algorithm>
#include <limits>
#include <unordered_set>

#include "base/error.h"
#include "meta/plan/candidates.h"
#include "meta/plan/routed.h"
#include "meta/plan/strategies.h"
#include "meta/rules/rule_cache.h"

namespace shoal::meta {
namespace {

class Propagator {
 public:
  Propagator(const GraphRange& range, int ranks, const LeafLayout& leaf_layout, const CostModel& model,
             const RuleLookup& rules, std::span<const ConstrainedTensor> constraints)
      : range_(range),
        ranks_(ranks),
        leaf_layout_(leaf_layout),
        model_(model),
        rules_(*range.graph, rules),
        shares_(ranks),
        users_(*range.graph),
        available_(*range.graph),
        routed_(*range.graph),
        sum_users_(*range.graph) {
    const auto count = static_cast<size_t>(range.end - range.begin);
    result_.reserve(count);
    for (const ConstrainedTensor& one : constraints) constraints_.emplace(one.tensor, &one.constraint);
  }

  Propagation run() {
    collect_users();
    for (const auto& [tensor, constraint] : constraints_) {
      if (tensor->is_leaf() && constraint->required) set_input(*tensor, constraint->layout);
    }
    collect_shares();
    for (int i = range_.begin; i < range_.end; ++i) visit(*range_.graph->nodes()[i]);
    return std::move(result_);
  }

 private:
  struct User {
    const Tensor* node;
    int index;
  };
  /// The first two users that need the complete value of a partial sum. A missing user is nullptr.
  struct SumUsers {
    const Tensor *first = nullptr, *second = nullptr;
  };

  /// Users after the range are included, because this range computes sources of these users.
  void collect_users() {
    for (int i = range_.begin; i < static_cast<int>(range_.graph->nodes().size()); ++i) {
      const Tensor* node = range_.graph->nodes()[i];
      for (size_t s = 0; s < node->src.size(); ++s) {
        if (node->src[s] != nullptr) users_[*node->src[s]].push_back({node, static_cast<int>(s)});
      }
    }
  }

  /// Adds up the bytes of split weights on each rank. These sums show how the split callback divides the work.
  void collect_shares() {
    std::unordered_set<const Tensor*> seen;
    for (int i = range_.begin; i < range_.end; ++i) {
      for (const Tensor* source : range_.graph->nodes()[i]->src) {
        if (source == nullptr || !is_weight(*source) || !seen.insert(source).second) continue;
        const Layout& layout = layout_of(*source);
        if (!layout.is_split() || source->empty()) continue;
        const double per_element =
            static_cast<double>(source->bytes()) / static_cast<double>(layout.partition.length());
        for (int rank = 0; rank < ranks_; ++rank) {
          shares_[rank] += per_element * static_cast<double>(layout.partition.local_length(rank));
        }
      }
    }
  }

  bool is_for_the_host_alone(const Tensor& node) { return node.is_output && users_[node].empty(); }

  /// Returns the seconds that the readers of a node need if the value of the node is divided among the ranks. Returns
  /// nullopt if a device needs the whole value. A read by the host costs nothing. A selection costs the gather of its
  /// candidates. The cost of a view or element-wise op is the cost of the readers of its own result.
  std::optional<double> cost_of_dividing(const Tensor& node) {
    const auto& users = users_[node];
    if (users.empty() && !node.is_output) return std::nullopt;
    double cost = 0;
    for (const User& user : users) {
      const Tensor& next = *user.node;
      std::optional<double> part;
      if (constraint_of(next) != nullptr || next.op == Op::kReshard) return std::nullopt;
      if (is_view(next.op) || is_by_element(next, rules_.find(next))) {
        part = cost_of_dividing(next);
      } else if (next.op == Op::kGetRows && user.index == 0 && is_for_the_host_alone(next)) {
        part = 0.0;
      } else if (auto candidates = candidates_of(next, Partition::even(ranks_, next.src[0]->shape[0]))) {
        part = gather_cost(model_, static_cast<double>(candidate_bytes(next, *candidates)), ranks_);
      }
      if (!part) return std::nullopt;
      cost += *part;
    }
    return cost;
  }

  /// True if the user needs the complete sum. A view needs the sum if one of the users of the view needs the sum.
  bool needs_sum(const User& user) {
    const auto& routing = routed_[*user.node->src[static_cast<size_t>(user.index)]];
    if (routing && passes_routed(*user.node, user.index, *routing)) return false;
    if (user.node->op == Op::kReshard) return true;
    if (!is_view(user.node->op)) return !passes_partial(*user.node, user.index, rules_.find(*user.node));
    if (constraint_of(*user.node) != nullptr) return true;
    const auto& users = users_[*user.node];
    return std::any_of(users.begin(), users.end(), [&](const User& next) { return needs_sum(next); });
  }

  const Layout& layout_of(const Tensor& tensor) {
    const auto& available = available_[tensor];
    if (available.empty()) available_[tensor].push_back(leaf_layout_(tensor));
    return available.front();
  }

  /// Seconds to convert `tensor` to `target` for `node`. The cost of reducing a partial sum is divided by the number of
  /// users of the sum. This cost is 0 if another user needs the complete sum anyway.
  double source_cost(const Tensor& node, const Tensor& tensor, const Layout& target) {
    const auto& available = available_[tensor];
    const Layout& from = available[cheapest_source(available, target, tensor, ranks_, model_)];
    const double cost = conversion_cost(model_, tensor, from, target, ranks_);
    if (!from.is_partial() || !target.is_mirrored()) return cost;
    return another_needs_sum(tensor, node) ? 0 : cost / static_cast<double>(users_[tensor].size());
  }

  /// True if a user of `tensor` other than `node` needs the complete sum.
  bool another_needs_sum(const Tensor& tensor, const Tensor& node) {
    // Without routing, the users that need the sum do not change, so these users are cached for repeated calls.
    std::optional<SumUsers>& known = sum_users_[tensor];
    if (!known || routed_[tensor]) {
      known.emplace();
      for (const User& user : users_[tensor]) {
        if (user.node == known->first || !needs_sum(user)) continue;
        (known->first == nullptr ? known->first : known->second) = user.node;
        if (known->second != nullptr) break;
      }
    }
    return known->second != nullptr || (known->first != nullptr && known->first != &node);
  }

  /// Returns the seconds to reduce the partial result of the node for its users. Returns 0 if the result is not
  /// partial, if only the host reads the node, or if all users accept routed rows (routed.h).
  double later_cost(const Tensor& node, const NodeChoice& choice) {
    const Layout& result = choice.result;
    if (!result.is_partial() || users_[node].empty()) return 0;
    const auto routing = routing_of(node, choice, routings_of(node), rules_.find(node));
    const auto passes = [&](const User& user) { return passes_routed(*user.node, user.index, *routing); };
    if (routing && std::all_of(users_[node].begin(), users_[node].end(), passes)) return 0;
    // A view sends no data, so the users of the view decide whether a reduction is needed. For other ops the reduction
    // is always counted.
    const auto sums = [&](const User& user) { return needs_sum(user); };
    if (is_view(node.op) && std::none_of(users_[node].begin(), users_[node].end(), sums)) return 0;
    return conversion_cost(model_, node, result, Layout::mirrored(), ranks_);
  }

  /// Division of the node's work among the ranks; nullptr if every rank computes the whole node.
  static const Partition* parts_of(const Tensor& node, const NodeChoice& choice) {
    if (choice.factor >= 0 || choice.by_candidates) return &choice.partition;
    return node.op == Op::kConcat && choice.result.is_split() ? &choice.result.partition : nullptr;
  }

  /// `wanted` is the layout to which the result is converted at once; nullptr if no constraint is followed.
  double cost_of(const Tensor& node, const NodeChoice& choice, const Layout* wanted) {
    double cost = compute_cost(model_, node, parts_of(node, choice));
    cost +=
        wanted == nullptr ? later_cost(node, choice) : conversion_cost(model_, node, choice.result, *wanted, ranks_);
    if (choice.by_candidates) {
      const auto candidates = candidates_of(node, choice.partition);
      cost += gather_cost(model_, static_cast<double>(candidate_bytes(node, *candidates)), ranks_);
    }
    for (size_t i = 0; i < node.src.size(); ++i) {
      if (node.src[i] != nullptr) cost += source_cost(node, *node.src[i], choice.sources[i]);
    }
    return cost;
  }

  /// If divided_output() returns a strategy and no device needs the whole node, inserts this strategy as the first of
  /// `candidates` and returns true.
  bool add_divided(const Tensor& node, const std::vector<Layout>& sources, const Rule* rule,
                   std::vector<NodeChoice>& candidates) {
    if (std::none_of(shares_.begin(), shares_.end(), [](double share) { return share > 0; })) return false;
    auto divided = divided_output(node, sources, shares_, rule);
    if (!divided || !cost_of_dividing(node)) return false;
    candidates.insert(candidates.begin(), std::move(*divided));
    return true;
  }

  const LayoutConstraint* constraint_of(const Tensor& tensor) const {
    if (constraints_.empty()) return nullptr;
    const auto found = constraints_.find(&tensor);
    return found == constraints_.end() ? nullptr : found->second;
  }

  void set_input(const Tensor& input, const Layout& layout) {
    available_[input] = {layout};
    result_.insert_or_assign(&input, NodeChoice{{}, layout, -1, {}});
  }

  /// Follows or drops the hints for inputs that `node` reads first. The hints of one node are decided together.
  void decide_inputs(const Tensor& node) {
    std::vector<const Tensor*> open;
    double factor = std::numeric_limits<double>::infinity();
    for (const Tensor* source : node.src) {
      if (source == nullptr || !source->is_leaf() || !available_[*source].empty()) continue;
      const LayoutConstraint* hint = constraint_of(*source);
      if (hint == nullptr) continue;
      open.push_back(source);
      factor = std::min(factor, hint->factor);
    }
    if (open.empty()) return;
    const auto cost = [&](bool follows) {
      for (const Tensor* input : open)
        set_input(*input, follows ? constraint_of(*input)->layout : leaf_layout_(*input));
      return cheapest(node, nullptr, true).cost;
    };
    const double without = cost(false);
    if (cost(true) > factor * without) cost(false);
  }

  struct Offer {
    NodeChoice choice;
    double cost = 0;
  };

  /// The cheapest strategy whose result is then converted to `wanted`, or whose result needs no conversion (nullptr).
  /// The cost of a single strategy is computed only if `needs_cost` is set.
  Offer cheapest(const Tensor& node, const Layout* wanted, bool needs_cost) {
    std::vector<Layout> sources(node.src.size());
    for (size_t i = 0; i < node.src.size(); ++i) {
      if (node.src[i] != nullptr) sources[i] = layout_of(*node.src[i]);
    }
    if (looks_up_selected(node)) {
      const auto ids = result_.find(node.src[1]);
      if (ids != result_.end() && ids->second.by_candidates) {
        return {{std::move(sources), Layout::mirrored(), -1, {}, false, true}};
      }
    }
    const bool on_runs = is_view(node.op) || node.op == Op::kConcat;
    const Rule* rule = on_runs ? nullptr : rules_.find(node);
    auto candidates = strategies(node, sources, ranks_, rule);
    if (auto routed = routed_strategy(node, sources, routings_of(node), rule)) {
      candidates.insert(candidates.begin(), *std::move(routed));
    }
    bool is_divided = false;
    if (wanted == nullptr) {
      is_divided = add_divided(node, sources, rule, candidates);
    } else if (auto direct = strategy_for(node, *wanted, rule)) {
      candidates.insert(candidates.begin(), *std::move(direct));
    }
    size_t best = 0;
    double least = std::numeric_limits<double>::infinity();
    for (size_t i = 0; i < candidates.size() && (candidates.size() > 1 || needs_cost); ++i) {
      const double later = is_divided && i == 0 ? *cost_of_dividing(node) : 0.0;
      const double cost = cost_of(node, candidates[i], wanted) + later;
      if (cost < least) least = cost, best = i;
    }
    return {std::move(candidates[best]), least};
  }

  void visit(const Tensor& node) {
    if (!constraints_.empty()) decide_inputs(node);
    const LayoutConstraint* constraint = constraint_of(node);
    if (constraint == nullptr) return take(node, cheapest(node, nullptr, false).choice);
    const Layout& wanted = constraint->layout;
    Offer offer = cheapest(node, &wanted, !constraint->required);
    const bool is_fixed = info(node.op).alias == Alias::kWrites && offer.choice.result != wanted;
    if (is_fixed && constraint->required) {
      fail<InvalidArgument>(
          "the required layout '{}' of {} contradicts the layout '{}' of the cache {}, into which {} writes; require "
          "the layout of the cache for {}, or read the result through reshard()",
          wanted.to_string(), node.name, offer.choice.result.to_string(), node.storage()->name, name_of(node.op),
          node.name);
    }
    if (!constraint->required) {
      Offer free = cheapest(node, nullptr, true);
      if (is_fixed || offer.cost > constraint->factor * free.cost) return take(node, std::move(free.choice));
    }
    if (offer.choice.result != wanted) offer.choice.wanted = wanted;
    take(node, std::move(offer.choice));
  }

  /// Routings of the node's sources. The result is valid until the next call.
  Routings routings_of(const Tensor& node) {
    routings_.clear();
    for (const Tensor* source : node.src) {
      const bool is_routed = source != nullptr && routed_[*source].has_value();
      routings_.push_back(is_routed ? &*routed_[*source] : nullptr);
    }
    return routings_;
  }

  void take(const Tensor& node, NodeChoice choice) {
    if (choice.result.is_partial() && !choice.wanted) {
      routed_[node] = routing_of(node, choice, routings_of(node), rules_.find(node));
    }
    for (size_t i = 0; i < node.src.size(); ++i) {
      if (node.src[i] == nullptr) continue;
      auto& available = available_[*node.src[i]];
      bool known = false;
      for (const Layout& layout : available) known |= layout == choice.sources[i];
      if (!known) available.push_back(choice.sources[i]);
    }
    available_[node].push_back(choice.layout());
    result_.emplace(&node, std::move(choice));
  }

  const GraphRange& range_;
  const int ranks_;
  const LeafLayout& leaf_layout_;
  const CostModel& model_;
  RuleCache rules_;
  std::vector<double> shares_;  ///< bytes of split weights on each rank
  PerTensor<std::vector<User>> users_;
  PerTensor<std::vector<Layout>> available_;  ///< existing layouts of each tensor, starting with the chosen layout
  PerTensor<std::optional<RowRouting>> routed_;
  PerTensor<std::optional<SumUsers>> sum_users_;
  std::vector<const RowRouting*> routings_;
  std::unordered_map<const Tensor*, const LayoutConstraint*> constraints_;
  Propagation result_;
};

}  // namespace

size_t cheapest_source(std::span<const Layout> available, const Layout& target, const Tensor& tensor, int ranks,
                       const CostModel& model) {
  size_t best = 0;
  double least = std::numeric_limits<double>::infinity();
  for (size_t i = 0; i < available.size(); ++i) {
    const double cost = conversion_cost(model, tensor, available[i], target, ranks);
    if (cost < least) least = cost, best = i;
  }
  return best;
}

Propagation propagate(const GraphRange& range, int ranks, const LeafLayout& leaf_layout, const CostModel& model,
                      const RuleLookup& rules, std::span<const ConstrainedTensor> constraints) {
  return Propagator(range, ranks, leaf_layout, model, rules, constraints).run();
}

}  // namespace shoal::meta
