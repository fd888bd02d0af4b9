#include "tuning/propose/families.h"

#include <fmt/format.h>
#include <fmt/ranges.h>

#include <algorithm>
#include <cmath>
#include <limits>
#include <optional>
#include <set>

#include "models/place/split_division.h"

namespace shoal::tuning {
namespace {

using meta::Factor;
using meta::Partition;
using meta::Rule;

/// Units that fill whole vector registers are preferred if each device gets kManyUnits of them on average.
constexpr int64_t kVectorUnit = 32, kManyUnits = 16;
/// Fraction of a unit that decides between devices with equal deficits.
constexpr double kTieBreak = 1e-3;
/// A factor of equal nodes is not tried again after this number of failures.
constexpr int kMostFailures = 3;

struct Start {
  const Tensor* node;
  const Rule* rule;
  int factor;
  int64_t length() const { return rule->factors[static_cast<size_t>(factor)].length; }
};

/// Whether a walk may start here: the factor divides a weight or cache, or it relates axes of several activations.
bool is_start(const Tensor& node, const Rule& rule, int factor) {
  const Factor& one = rule.factors[static_cast<size_t>(factor)];
  if (one.kind == meta::FactorKind::kWhole || one.length < 2) return false;
  int operands = 0;
  const auto is_related = [&](const meta::Operand& operand) {
    const int axis = Rule::axis_of(operand, factor);
    if (axis < 0) return false;
    const meta::AxisTerm& term = operand.axes[static_cast<size_t>(axis)];
    return ++operands >= 2 || term.group > 1 || term.repeat > 1;
  };
  for (size_t i = 0; i < node.src.size(); ++i) {
    if (node.src[i] == nullptr || Rule::axis_of(rule.sources[i], factor) < 0) continue;
    if (behind_views(*node.src[i]).is_persistent() || is_related(rule.sources[i])) return true;
  }
  return false;
}

/// Values that are equal for equal layers. Dtypes differ in some layers of a file, so they do not count.
uint64_t hash_of(const Tensor& node, char letter) {
  uint64_t hash = static_cast<uint64_t>(node.op) * 131 + static_cast<unsigned char>(letter);
  const auto add = [&](const Tensor& tensor) {
    for (const int64_t length : tensor.shape) hash = (hash ^ static_cast<uint64_t>(length)) * 0x9e3779b97f4a7c15;
  };
  add(node);
  for (const Tensor* source : node.src) {
    if (source != nullptr) add(*source);
  }
  return hash;
}

std::string without_numbers(const std::string& name) {
  std::string out;
  for (size_t i = 0; i < name.size(); ++i) {
    const bool is_digit = name[i] >= '0' && name[i] <= '9';
    const bool is_number = is_digit && (out.empty() || out.back() == '.' || out.back() == '_' || out.back() == '*');
    if (!is_number)
      out += name[i];
    else if (out.empty() || out.back() != '*')
      out += '*';
  }
  return out;
}

class Finder {
 public:
  Finder(const Graph& graph, const meta::RuleLookup& rules, std::span<const double> shares)
      : index_(graph, rules), shares_(shares.begin(), shares.end()), coarse_(shares.size()) {
    sharers_ = std::ranges::count_if(shares_, [](double share) { return share > 0; });
    for (const Tensor* node : graph.nodes()) {
      const Rule* rule = index_.rule(*node);
      for (int factor = 0; rule != nullptr && factor < static_cast<int>(rule->factors.size()); ++factor) {
        if (is_start(*node, *rule, factor)) starts_.push_back({node, rule, factor});
      }
    }
  }

  /// Families with units for all devices come first, so that they take precedence over coarser divisions.
  std::vector<FamilyGroup> run() {
    pass(sharers_, std::numeric_limits<int64_t>::max(), false);
    pass(2, sharers_ - 1, false);
    pass(sharers_, std::numeric_limits<int64_t>::max(), true);
    pass(1, 1, false);
    return grouped();
  }

 private:
  struct Family {
    int first;  ///< number of the first node
    std::vector<uint64_t> structure;
    LeafLayouts leaves;
  };

  void pass(int64_t least, int64_t most, bool lenient) {
    failures_.clear();
    for (const Start& start : starts_) {
      const auto key = std::pair(start.rule, start.factor);
      const std::pair here(start.node, start.factor);
      if (visited_.contains(here) || (lenient && visited_leniently_.contains(here))) continue;
      if (failures_[key] >= kMostFailures) continue;
      if (!find(start, least, most, lenient)) ++failures_[key];
    }
  }

  /// Units with `least` to `most` units per factor, in the order of preference.
  std::vector<int64_t> units(int64_t length, int64_t least, int64_t most) const {
    std::vector<int64_t> out;
    for (int64_t unit = 1; unit <= length / least; ++unit) {
      if (length % unit == 0 && length / unit <= most) out.push_back(unit);
    }
    std::stable_partition(out.begin(), out.end(), [&](int64_t unit) {
      return unit % kVectorUnit == 0 && length / unit >= kManyUnits * sharers_;
    });
    return out;
  }

  bool find(const Start& start, int64_t least, int64_t most, bool lenient) {
    const models::ShareLedger even(shares_);
    for (const int64_t unit : units(start.length(), least, most)) {
      auto walk = walked(start, unit, even, lenient);
      if (!walk) continue;
      std::vector<uint64_t> structure = structure_of(*walk);
      // Later layers correct the rounding errors of earlier layers.
      auto& ledger = ledgers_.try_emplace(structure, shares_).first->second;
      if (auto balanced = walked(start, unit, ledger, lenient)) walk.emplace(*std::move(balanced));
      keep(start, *walk, std::move(structure), ledger, lenient);
      return true;
    }
    return false;
  }

  /// Walks with the partition that the ledger wants; nullopt if the walk fails.
  std::optional<Walk> walked(const Start& start, int64_t unit, const models::ShareLedger& ledger, bool lenient) {
    const int64_t length = start.length();
    std::vector<double> wanted = ledger.wanted(static_cast<double>(length));
    // Among devices with equal deficits, a device with few units of this family is preferred, and then a device without
    // units of the latest coarse family, because it may be idle while the other devices compute this family.
    for (size_t device = 0; device < wanted.size(); ++device) {
      const auto one = static_cast<double>(unit);
      wanted[device] -= kTieBreak * one * (2 * std::floor(wanted[device] / one) + coarse_[device]);
    }
    Walk walk(index_, lenient);
    const auto counts = models::divide_units(ledger, std::move(wanted), length, unit);
    if (!walk.run(*start.node, {start.factor, Partition::from_shares(counts)})) return std::nullopt;
    return walk;
  }

  std::vector<uint64_t> structure_of(const Walk& walk) {
    std::vector<uint64_t> structure;
    for (const auto& [node, split] : walk.nodes()) {
      const Factor& factor = index_.rule(*node)->factors[static_cast<size_t>(split.factor)];
      structure.push_back(hash_of(*node, factor.letter));
    }
    std::ranges::sort(structure);
    return structure;
  }

  void keep(const Start& start, const Walk& walk, std::vector<uint64_t> structure, models::ShareLedger& ledger,
            bool lenient) {
    Family family{std::numeric_limits<int>::max(), std::move(structure), walk.leaves()};
    for (const auto& [node, split] : walk.nodes()) {
      (lenient ? visited_leniently_ : visited_).insert({node, split.factor});
      family.first = std::min(family.first, node->id);
    }
    if (family.leaves.empty()) return;
    const Partition& partition = walk.nodes().at(start.node).partition;
    const bool is_coarse = partition.runs().size() < static_cast<size_t>(sharers_);
    for (int device = 0; device < ledger.devices(); ++device) {
      const auto count = static_cast<double>(partition.local_length(device));
      ledger.give(device, count);
      const double part = count / static_cast<double>(partition.length());
      double& coarse = coarse_[static_cast<size_t>(device)];
      if (is_coarse && !lenient) coarse = part;
    }
    families_.push_back(std::move(family));
  }

  std::vector<FamilyGroup> grouped() {
    std::ranges::stable_sort(families_, {}, &Family::first);
    std::vector<FamilyGroup> groups;
    std::map<std::vector<uint64_t>, size_t> numbers;
    std::vector<std::map<const Tensor*, meta::Layout>> known;
    for (Family& family : families_) {
      const auto [number, is_new] = numbers.try_emplace(family.structure, groups.size());
      if (is_new) groups.emplace_back(), known.emplace_back();
      auto& layouts = known[number->second];
      const auto differs = [&](const auto& leaf) {
        const auto other = layouts.find(leaf.first);
        return other != layouts.end() && other->second != leaf.second;
      };
      if (std::ranges::any_of(family.leaves, differs)) continue;
      FamilyGroup& group = groups[number->second];
      for (const auto& leaf : family.leaves) {
        if (layouts.insert(leaf).second) group.bytes += leaf.first->bytes();
      }
      group.families.push_back(std::move(family.leaves));
    }
    return groups;
  }

  GraphIndex index_;
  std::vector<double> shares_;
  int64_t sharers_ = 0;
  std::vector<Start> starts_;
  std::set<std::pair<const Tensor*, int>> visited_, visited_leniently_;
  std::map<std::pair<const Rule*, int>, int> failures_;
  std::map<std::vector<uint64_t>, models::ShareLedger> ledgers_;  ///< by structure
  std::vector<double> coarse_;  ///< shares of the latest family with fewer units than devices
  std::vector<Family> families_;
};

}  // namespace

std::string FamilyGroup::describe() const {
  std::vector<std::string> names;
  for (const auto& [tensor, layout] : families.front()) {
    names.push_back(fmt::format("{} axis {}", without_numbers(tensor->name), layout.axis));
  }
  return fmt::format("{}", fmt::join(names, ", "));
}

std::vector<FamilyGroup> find_families(const Graph& graph, const meta::RuleLookup& rules,
                                       std::span<const double> shares) {
  return Finder(graph, rules, shares).run();
}

}  // namespace shoal::tuning
