#include "tuning/propose/propose.h"

#include <fmt/format.h>
#include <fmt/ranges.h>

#include <algorithm>
#include <cmath>
#include <numeric>

#include "base/error.h"
#include "base/text.h"
#include "tuning/estimate.h"
#include "tuning/propose/families.h"

namespace shoal::tuning {
namespace {

using Layouts = std::unordered_map<const Tensor*, meta::Layout>;

/// Relative differences of times that do not count.
constexpr double kNoise = 1e-6;
/// Groups below this fraction of all bytes are small.
constexpr double kSmallPart = 1e-3;

/// The inputs of a proposal, checked.
class Problem {
 public:
  Problem(Graph& graph, std::span<Device* const> devices, const machine::MachineModel& machine,
          const ProposeOptions& options)
      : graph(graph), devices(devices.begin(), devices.end()), options(options), machine_(machine) {
    require<InvalidArgument>(!devices.empty(), "[{}] split states need at least one device", graph.name());
    const size_t count = devices.size();
    require<InvalidArgument>(options.shares.empty() || options.shares.size() == count,
                             "[{}] got {} shares for {} devices; give one for each device", graph.name(),
                             options.shares.size(), count);
    require<InvalidArgument>(options.memory.empty() || options.memory.size() == count,
                             "[{}] got {} memory sizes for {} devices; give one for each device", graph.name(),
                             options.memory.size(), count);
    set_shares();
    std::map<std::string, const Tensor*> names;
    for (Tensor* leaf : graph.leaves()) {
      if (!leaf->is_persistent()) continue;
      require<InvalidArgument>(names.emplace(leaf->name, leaf).second,
                               "[{}] two weights or caches are named '{}'; rename one of them", graph.name(),
                               leaf->name);
      leaves.push_back(leaf);
    }
    std::vector<std::string> device_names;
    for (size_t i = 0; i < count; ++i) {
      device_names.push_back(devices[i]->name());
      indices_.push_back(machine.index(device_names.back()));
      memory.push_back(options.memory.empty() ? devices[i]->memory().free : options.memory[i]);
    }
    context_ = options.context;
    context_.copied_weights = {};
    context_.costs = machine::CostModel::of(std::make_shared<const machine::MachineModel>(machine), device_names);
  }

  Prediction predict(const Layouts& layouts) const {
    meta::ShardStore store(static_cast<int>(devices.size()));
    for (const Tensor* leaf : leaves) {
      const auto found = layouts.find(leaf);
      store.declare(*leaf, found == layouts.end() ? meta::Layout::mirrored() : found->second);
    }
    meta::PlanContext context = context_;
    context.shards = [&store](const Tensor& tensor) { return store.find(tensor); };
    const meta::Plan plan = meta::make_plan(whole(graph), context, devices);
    const Estimator estimator(plan, machine_, indices_, options.kv_rows);
    Prediction prediction{estimator.segments(0, static_cast<int>(plan.segments.size())).seconds,
                          meta::persistent_memory(leaves, store, devices)};
    for (const Tensor* node : graph.nodes()) {
      // The host reads the addend of every device.
      if (!node->is_output || !plan.layout(*node).is_partial()) continue;
      const double addends = static_cast<double>((devices.size() - 1) * node->bytes());
      prediction.seconds += addends / machine_.copy_bandwidth;
    }
    for (size_t rank = 0; rank < devices.size(); ++rank) {
      prediction.memory[rank].compute = plan.ranks[rank].memory.compute;
      prediction.memory[rank].communication = plan.ranks[rank].memory.communication;
    }
    return prediction;
  }

  /// Bytes of device `rank` that do not fit.
  size_t missing(const Prediction& prediction, size_t rank) const {
    const size_t needed = prediction.memory[rank].total();
    return needed > memory[rank] ? needed - memory[rank] : 0;
  }
  size_t missing(const Prediction& prediction) const {
    size_t bytes = 0;
    for (size_t rank = 0; rank < devices.size(); ++rank) bytes += missing(prediction, rank);
    return bytes;
  }

  Graph& graph;
  std::vector<Device*> devices;
  std::vector<Tensor*> leaves;  ///< weights and caches
  std::vector<double> shares;   ///< with sum 1
  std::vector<size_t> memory;
  const ProposeOptions& options;

 private:
  void set_shares() {
    shares = options.shares.empty() ? std::vector<double>(devices.size(), 1.0) : options.shares;
    const double sum = std::accumulate(shares.begin(), shares.end(), 0.0);
    const bool all = std::ranges::all_of(shares, [](double share) { return share >= 0; });
    const bool valid = all && sum > 0 && std::isfinite(sum);
    require<InvalidArgument>(valid, "[{}] the shares {} must be >= 0 and have a finite sum above 0", graph.name(),
                             fmt::join(shares, ","));
    for (double& share : shares) share /= sum;
  }

  const machine::MachineModel& machine_;
  std::vector<int> indices_;  ///< index of each device in the machine
  meta::PlanContext context_;
};

/// Searches for a set of groups of families.
class Search {
 public:
  using Chosen = std::vector<bool>;  ///< by number of the group

  explicit Search(const Problem& problem)
      : problem_(problem), groups_(find_families(problem.graph, problem.options.context.rules, problem.shares)) {
    conflicts_.resize(groups_.size(), Chosen(groups_.size()));
    std::vector<Layouts> layouts;
    for (const FamilyGroup& group : groups_) layouts.push_back(layouts_of(group));
    for (size_t a = 0; a < groups_.size(); ++a) {
      for (size_t b = 0; b < a; ++b) {
        const bool differ = std::ranges::any_of(layouts[a], [&](const auto& leaf) {
          const auto other = layouts[b].find(leaf.first);
          return other != layouts[b].end() && other->second != leaf.second;
        });
        conflicts_[a][b] = conflicts_[b][a] = differ;
      }
    }
  }

  Chosen run() {
    set_order();
    const auto any = [](const Prediction&, const Prediction&) { return true; };
    Chosen chosen = improved(completed(Chosen(groups_.size())), any);
    // The second start prefers groups of several layers to families that span layers.
    std::stable_partition(order_.begin(), order_.begin() + gainful_,
                          [&](size_t group) { return groups_[group].families.size() > 1; });
    const Chosen other = improved(completed(Chosen(groups_.size())), any);
    if (predict(other).seconds < predict(chosen).seconds) chosen = other;
    while (problem_.missing(predict(chosen)) > 0 && save_memory(chosen)) {
    }
    return improved(chosen, [this](const Prediction& now, const Prediction& next) {
      return problem_.missing(next) <= problem_.missing(now);
    });
  }

  const Prediction& predict(const Chosen& chosen) {
    const auto [found, is_new] = known_.try_emplace(chosen);
    if (is_new) found->second = problem_.predict(layouts_of(chosen));
    return found->second;
  }

  Layouts layouts_of(const Chosen& chosen) const {
    Layouts layouts;
    for (size_t g = 0; g < groups_.size(); ++g) {
      if (chosen[g]) layouts.merge(layouts_of(groups_[g]));
    }
    return layouts;
  }
  const std::vector<FamilyGroup>& groups() const { return groups_; }
  size_t count() const { return known_.size(); }

 private:
  static Layouts layouts_of(const FamilyGroup& group) {
    Layouts layouts;
    for (const LeafLayouts& family : group.families) layouts.insert(family.begin(), family.end());
    return layouts;
  }

  /// Adds or removes the group. Groups that divide one of its tensors in another way are removed.
  Chosen toggled(Chosen chosen, size_t group) const {
    chosen[group] = !chosen[group];
    for (size_t other = 0; other < groups_.size() && chosen[group]; ++other) {
      if (conflicts_[group][other]) chosen[other] = false;
    }
    return chosen;
  }

  /// Sorts the groups by the predicted time if only this group is split. A small group that is slower than mirrored
  /// tensors can only save memory.
  void set_order() {
    const Chosen none(groups_.size());
    const double mirrored = predict(none).seconds;
    std::vector<double> seconds;
    size_t bytes = 0;
    for (const Tensor* leaf : problem_.leaves) bytes += leaf->bytes();
    for (size_t group = 0; group < groups_.size(); ++group) {
      seconds.push_back(predict(toggled(none, group)).seconds);
      const bool is_small = static_cast<double>(groups_[group].bytes) < kSmallPart * static_cast<double>(bytes);
      if (!is_small || seconds[group] < mirrored) order_.push_back(group);
    }
    std::ranges::stable_sort(order_, {}, [&](size_t group) { return seconds[group]; });
    gainful_ = std::ranges::count_if(order_, [&](size_t group) { return seconds[group] < mirrored; });
  }

  bool fits(const Chosen& chosen, size_t group) const {
    for (size_t other = 0; other < groups_.size(); ++other) {
      if (chosen[other] && conflicts_[group][other]) return false;
    }
    return true;
  }

  /// Adds all groups that are faster than mirrored tensors and do not conflict with the chosen groups.
  Chosen completed(Chosen chosen) const {
    for (auto group = order_.begin(); group != order_.begin() + gainful_; ++group) {
      if (fits(chosen, *group)) chosen[*group] = true;
    }
    return chosen;
  }

  /// Adds and removes groups as long as the predicted time decreases. `allows` compares the memory.
  template <class Allows>
  Chosen improved(Chosen chosen, const Allows& allows) {
    for (bool changed = true; changed;) {
      changed = false;
      for (const size_t group : order_) {
        const bool replaces = !chosen[group] && !fits(chosen, group);
        const Chosen next = replaces ? completed(toggled(chosen, group)) : toggled(chosen, group);
        const Prediction &now = predict(chosen), &then = predict(next);
        if (then.seconds >= now.seconds * (1 - kNoise) || !allows(now, then)) continue;
        chosen = next;
        changed = true;
      }
    }
    return chosen;
  }

  /// Splits the group with the smallest loss of time per saved byte. Returns false if no group saves memory.
  bool save_memory(Chosen& chosen) {
    const Prediction now = predict(chosen);
    std::optional<std::pair<double, size_t>> best;
    for (size_t group = 0; group < groups_.size(); ++group) {
      const Prediction& next = predict(toggled(chosen, group));
      const size_t before = problem_.missing(now), after = problem_.missing(next);
      if (after >= before) continue;
      const double loss = (next.seconds - now.seconds) / static_cast<double>(before - after);
      if (!best || loss < best->first) best.emplace(loss, group);
    }
    if (best) chosen = toggled(chosen, best->second);
    return best.has_value();
  }

  const Problem& problem_;
  std::vector<FamilyGroup> groups_;
  std::vector<Chosen> conflicts_;  ///< pairs of groups that divide a tensor in different ways
  std::vector<size_t> order_;
  std::ptrdiff_t gainful_ = 0;  ///< the first groups of order_ are faster than mirrored tensors
  std::map<Chosen, Prediction> known_;
};

void require_memory(const Problem& problem, const Prediction& best) {
  size_t worst = 0;
  for (size_t rank = 1; rank < problem.devices.size(); ++rank) {
    if (problem.missing(best, rank) > problem.missing(best, worst)) worst = rank;
  }
  const size_t missing = problem.missing(best, worst);
  if (missing == 0) return;
  fail<DeviceError>(
      "[{}] {} needs {} on this device, but {} are free, so {} are missing: add devices, give this device a smaller "
      "share, or use smaller types or caches",
      problem.devices[worst]->name(), problem.graph.name(), format_bytes(best.memory[worst].total()),
      format_bytes(problem.memory[worst]), format_bytes(missing));
}

std::string reason_of(const Search& search, const Search::Chosen& chosen, const Proposal& proposal) {
  std::vector<std::string> split;
  for (size_t g = 0; g < chosen.size(); ++g) {
    if (chosen[g]) split.push_back(search.groups()[g].describe());
  }
  if (split.empty()) return fmt::format("mirrored tensors are the fastest of {} alternatives", search.count());
  return fmt::format("{:.3g} us instead of {:.3g} us with mirrored tensors; split: {}", proposal.seconds * 1e6,
                     proposal.mirrored_seconds * 1e6, fmt::join(split, "; "));
}

}  // namespace

meta::SplitState Proposal::operator()(const Tensor& tensor) const {
  const auto found = states.find(tensor.name);
  return found == states.end() ? meta::SplitState::mirrored() : found->second;
}

Prediction predict_graph(Graph& graph, std::span<Device* const> devices, const machine::MachineModel& machine,
                         const meta::SplitStateCallback& states, const ProposeOptions& options) {
  const Problem problem(graph, devices, machine, options);
  Layouts layouts;
  for (const Tensor* leaf : problem.leaves) {
    layouts.emplace(leaf, meta::to_layout(states(*leaf), *leaf, static_cast<int>(devices.size())));
  }
  return problem.predict(layouts);
}

Proposal propose_split_states(Graph& graph, std::span<Device* const> devices, const machine::MachineModel& machine,
                              const ProposeOptions& options) {
  const Problem problem(graph, devices, machine, options);
  Search search(problem);
  const Search::Chosen chosen = search.run();
  const Prediction best = search.predict(chosen);
  require_memory(problem, best);
  Proposal proposal;
  for (const auto& [tensor, layout] : search.layouts_of(chosen)) {
    proposal.states.emplace(tensor->name, meta::SplitState::split(layout.axis, layout.partition));
  }
  proposal.seconds = best.seconds;
  proposal.mirrored_seconds = search.predict(Search::Chosen(chosen.size())).seconds;
  for (const Device* device : devices) proposal.devices.push_back(device->name());
  proposal.memory = best.memory;
  proposal.reason = reason_of(search, chosen, proposal);
  return proposal;
}

std::string to_string(const Proposal& proposal) {
  std::string text = fmt::format("{}\n", proposal.reason);
  for (size_t rank = 0; rank < proposal.devices.size(); ++rank) {
    text += fmt::format("  {:<12} {}\n", proposal.devices[rank], format_bytes(proposal.memory[rank].total()));
  }
  for (const auto& [name, state] : proposal.states) text += fmt::format("  {:<28} {}\n", name, state.to_string());
  return text;
}

}  // namespace shoal::tuning
