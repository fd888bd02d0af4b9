#include "meta/check/rule_validator.h"

#include <fmt/format.h>

#include <algorithm>
#include <array>

#include "base/error.h"
#include "graph/text.h"
#include "meta/check/partitions.h"
#include "meta/check/rule_trial.h"

namespace shoal::meta {
namespace {

/// The combined result of all trials of one factor, or of all trials with one set of Partial sources.
struct Outcome {
  int divided = 0;      ///< number of trials in which at least two ranks had work
  std::string problem;  ///< describes the first failed trial
};

/// Returns the largest g of all source axes that the rule writes as factor/g; 1 if there are no such axes.
int64_t group_of(const Rule& rule, int factor) {
  int64_t group = 1;
  for (const Operand& source : rule.sources) {
    const int axis = Rule::axis_of(source, factor);
    if (axis >= 0) group = std::max(group, source.axes[axis].group);
  }
  return group;
}

/// Returns a trial that divides the factor by the partition; nullopt if the rule does not allow this partition.
std::optional<RuleTrial> split_trial(const Tensor& node, const Rule& rule, int factor, const Partition& partition) {
  const auto result = result_layout(rule, factor, partition);
  if (!result) return std::nullopt;
  RuleTrial trial{partition.devices(), {}, *result, {}, {}};
  for (const Operand& source : rule.sources) {
    const auto layout = operand_layout(rule, factor, partition, source);
    if (!layout) return std::nullopt;
    trial.sources.push_back(*layout);
  }
  trial.params = [&node, &rule, factor, partition](int rank) {
    return local_params(node, rule, factor, partition, rank);
  };
  trial.name = fmt::format("'{}' split [{}]", rule.factors[factor].letter, partition.to_string());
  return trial;
}

/// Checks the inverse mapping. From the layout of each source, factor_split() must derive the factor and a partition.
/// From this partition, operand_layout() must derive the same layout.
std::string check_way_back(const Rule& rule, int factor, const RuleTrial& trial) {
  for (size_t i = 0; i < rule.sources.size(); ++i) {
    if (!trial.sources[i].is_split()) continue;
    const auto back = factor_split(rule, rule.sources[i], trial.sources[i]);
    const bool same = back && back->factor == factor &&
                      operand_layout(rule, factor, back->partition, rule.sources[i]) == trial.sources[i];
    if (!same)
      return fmt::format("{}: source {} as {} gives another split", trial.name, i, trial.sources[i].to_string());
  }
  return {};
}

Outcome try_factor(const RuleSubject& subject, const Rule& rule, int factor, const std::vector<int>& all_ranks) {
  Outcome outcome;
  const Factor& tried = rule.factors[factor];
  for (const int ranks : all_ranks) {
    for (const Partition& partition : partitions_to_try(ranks, tried.length, tried.unit, group_of(rule, factor))) {
      const auto trial = split_trial(subject.node(), rule, factor, partition);
      if (!trial) continue;
      outcome.divided += divides_work(partition) && !subject.node().empty();
      outcome.problem = subject.run(*trial);
      if (outcome.problem.empty()) outcome.problem = check_way_back(rule, factor, *trial);
      if (!outcome.problem.empty()) return outcome;
    }
  }
  return outcome;
}

/// Tries the node with Partial layouts for the sources in `set`. All other sources are mirrored.
Outcome try_linear(const RuleSubject& subject, const std::vector<int>& set, const std::vector<int>& all_ranks) {
  Outcome outcome;
  for (const int ranks : all_ranks) {
    const std::vector<Layout> whole(subject.node().src.size(), Layout::mirrored());
    RuleTrial trial{ranks, whole, Layout::partial(), [&](int) { return subject.node().params; }, {}};
    bool has_elements = !subject.node().empty();
    for (const int i : set) {
      trial.sources[i] = Layout::partial();
      has_elements &= !subject.node().src[i]->empty();
    }
    trial.name = fmt::format("the sum of {} addends", ranks);
    outcome.divided += has_elements;
    outcome.problem = subject.run(trial);
    if (!outcome.problem.empty()) return outcome;
  }
  return outcome;
}

/// The factor kinds that the rule could claim instead of "whole".
std::vector<FactorKind> other_kinds(const Tensor& node, const Rule& rule, int factor) {
  std::vector<FactorKind> kinds;
  const bool in_result = Rule::axis_of(rule.result, factor) >= 0;
  kinds.push_back(in_result ? FactorKind::kParallel : FactorKind::kSummed);
  const bool of_rows = std::holds_alternative<SelectParams>(node.params) && Rule::axis_of(rule.sources[0], factor) > 0;
  if (of_rows) kinds.push_back(FactorKind::kSelected);
  return kinds;
}

/// All sets of one or two sources that can be Partial.
std::vector<std::vector<int>> sets_of_sources(const Tensor& node) {
  std::vector<int> summable;
  for (int i = 0; i < static_cast<int>(node.src.size()); ++i) {
    if (node.src[i] && (traits(node.src[i]->dtype).is_float || node.src[i]->dtype == DType::kI32))
      summable.push_back(i);
  }
  std::vector<std::vector<int>> sets;
  for (size_t i = 0; i < summable.size(); ++i) {
    sets.push_back({summable[i]});
    for (size_t j = i + 1; j < summable.size(); ++j) sets.push_back({summable[i], summable[j]});
  }
  return sets;
}

class Validator {
 public:
  Validator(const Graph& graph, const Rule& rule, const Reference& reference, const std::vector<int>& ranks)
      : subject_(graph, reference), rule_(rule), ranks_(ranks), finds_missing_(reference.finds_missing) {}

  RuleVerdict validate() {
    for (int factor = 0; factor < static_cast<int>(rule_.factors.size()); ++factor) {
      if (rule_.factors[factor].kind == FactorKind::kWhole) {
        find_missing_split(factor);
      } else {
        find_wrong_split(factor);
      }
    }
    for (const std::vector<int>& set : sets_of_sources(subject_.node())) check_linear(set);
    return std::move(verdict_);
  }

 private:
  void report(std::string what, bool missing, std::string problem, std::string remedy) {
    verdict_.findings.push_back({subject_.node().op, std::move(what), missing, std::move(remedy), std::move(problem),
                                 shoal::to_string(subject_.node())});
  }
  std::string name_of_factor(int factor) const { return fmt::format("factor {}", rule_.factors[factor].letter); }

  void find_wrong_split(int factor) {
    const Outcome outcome = try_factor(subject_, rule_, factor, ranks_);
    if (!outcome.problem.empty()) {
      report(name_of_factor(factor), false, outcome.problem,
             fmt::format("write '({})' in every operand, or correct the op for shards", rule_.factors[factor].letter));
    }
    if (outcome.divided > 0) verdict_.exercised += rule_.factors[factor].letter;
  }

  void find_missing_split(int factor) {
    if (!finds_missing_) return;
    for (const FactorKind kind : other_kinds(subject_.node(), rule_, factor)) {
      Rule guess = rule_;
      guess.factors[factor].kind = kind;
      const Outcome outcome = try_factor(subject_, guess, factor, ranks_);
      if (outcome.divided == 0 || !outcome.problem.empty()) continue;
      constexpr std::array kNames{"parallel", "summed", "selected", "whole"};
      constexpr std::array kForms{"write '{0}' without parentheses", "write '{0}' without parentheses, and '| sum {0}'",
                                  "write '[{0}]'", ""};
      report(name_of_factor(factor), true, fmt::format("it may be {}", kNames.at(static_cast<size_t>(kind))),
             fmt::format(fmt::runtime(kForms.at(static_cast<size_t>(kind))), rule_.factors[factor].letter));
    }
  }

  void check_linear(const std::vector<int>& set) {
    const bool claimed = std::find(rule_.linear.begin(), rule_.linear.end(), set) != rule_.linear.end();
    if (!claimed && !finds_missing_) return;
    const Outcome outcome = try_linear(subject_, set, ranks_);
    const std::string sources = fmt::format("{}", fmt::join(set, "+")), what = "linear " + sources;
    if (claimed && !outcome.problem.empty()) {
      report(what, false, outcome.problem, fmt::format("remove '{}' after 'linear'", sources));
    }
    if (!claimed && outcome.problem.empty() && outcome.divided > 0) {
      report(what, true, "the source may be Partial", fmt::format("write '| linear {}'", sources));
    }
  }

  RuleSubject subject_;
  Rule rule_;
  std::vector<int> ranks_;
  bool finds_missing_;
  RuleVerdict verdict_;
};

}  // namespace

std::string to_string(const RuleFinding& finding) {
  return fmt::format("{} {} is {}: {} in {}", name_of(finding.op), finding.what, finding.missing ? "missing" : "wrong",
                     finding.problem, finding.node);
}

RuleVerdict validate_rule(const Graph& graph, const Rule& rule, const Reference& reference,
                          const std::vector<int>& ranks) {
  return Validator(graph, rule, reference, ranks).validate();
}

}  // namespace shoal::meta
