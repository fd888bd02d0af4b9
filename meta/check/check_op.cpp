#include "meta/check/check_op.h"

#include <fmt/format.h>

#include <algorithm>
#include <random>
#include <set>

#include "base/error.h"
#include "graph/external_op.h"
#include "graph/text.h"
#include "meta/check/rule_validator.h"
#include "meta/check/run_kernel.h"

namespace shoal {
namespace {

using Kind = OpFinding::Kind;
using meta::Reference;
using meta::Rule;
using meta::TensorValues;
using meta::Values;

bool is_integer(DType dtype) {
  return dtype == DType::kI32 || dtype == DType::kI64;
}

/// The values of the example's leaves, rounded to their dtypes.
TensorValues leaf_values(const Graph& graph, const OpCase& example) {
  TensorValues leaves;
  std::mt19937 random(17);
  for (const Tensor* leaf : graph.leaves()) {
    Values values(static_cast<size_t>(leaf->elements()));
    for (double& value : values)
      value = is_integer(leaf->dtype) ? random() % 4 : static_cast<double>(random()) * 0x1p-31 - 1;
    if (const auto given = example.values.find(leaf->name); given != example.values.end()) {
      require<InvalidArgument>(given->second.size() == values.size(), "[check_op] {} needs {} values, got {}",
                               describe(*leaf), values.size(), given->second.size());
      values = given->second;
    }
    leaves[leaf] = meta::decode(leaf->dtype, meta::encode(leaf->dtype, values), leaf->elements());
  }
  return leaves;
}

class Checker {
 public:
  Checker(const ExternalOp& op, const CheckOptions& options) : op_(op), options_(options) { report_.op = op.name; }

  void check(const OpCase& example) {
    Graph graph("example");
    TensorContext weights;
    node_.clear();
    try {
      if (example.build) example.build(graph, weights);
      if (!example.build) parse_graph(example.graph, graph, weights);
    } catch (const Error& error) {
      return add(Kind::kError, "inference", error.what(), "correct the function infer, or the example");
    }
    const Tensor& node = subject_of(graph);
    node_ = to_string(node);
    const TensorValues leaves = leaf_values(graph, example);
    try {
      const std::string problem = meta::check_parts(node, leaves);
      if (!problem.empty()) {
        return add(
            Kind::kError, "CPU kernel", problem,
            "divide the elements of the result among the parts, and compute each element in the same way for any "
            "number of parts");
      }
    } catch (const Error& error) {
      return add(Kind::kError, "CPU kernel", error.what(), "correct the kernel");
    }
    check_rule(graph, node, leaves);
  }

  OpReport finish() {
    node_.clear();
    for (const char letter : splittable_) {
      if (exercised_.contains(letter)) continue;
      add(Kind::kUntested, fmt::format("factor {}", letter), "no example divides this factor among ranks",
          fmt::format("add an example in which '{}' has at least 2 elements", letter));
    }
    return std::move(report_);
  }

 private:
  void add(Kind kind, std::string what, std::string problem, std::string remedy) {
    report_.findings.push_back({kind, std::move(what), std::move(problem), std::move(remedy), node_});
  }

  const Tensor& subject_of(const Graph& graph) const {
    const auto nodes = graph.nodes();
    require<InvalidArgument>(
        nodes.size() == 1 && nodes[0]->op == Op::kExternal && std::get<ExternalParams>(nodes[0]->params).op == op_.name,
        "[check_op] expected an example with one node, of op '{}', got:\n{}", op_.name, to_string(graph));
    return *nodes[0];
  }

  void check_rule(const Graph& graph, const Tensor& node, const TensorValues& leaves) {
    std::optional<Rule> rule;
    try {
      rule = meta::rule_for(node);
    } catch (const Error& error) {
      return add(Kind::kError, "rule", error.what(), "correct the rule (grammar: meta/rules/rule.h)");
    }
    if (!rule) return;
    report_.has_rule = true;
    // Ids could be out of the range of a shard, so splits that the rule does not claim could read outside the sources.
    const bool has_ids = std::ranges::any_of(node.src, [](const Tensor* source) { return is_integer(source->dtype); });
    const auto evaluate = [](const Graph& one, const TensorValues& values) {
      const Tensor& local = *one.nodes().back();
      return meta::decode(local.dtype, meta::run_kernel(local, values, {}), local.elements());
    };
    const Reference reference{leaves, evaluate, options_.f32_tolerance, !has_ids};
    const meta::RuleVerdict verdict = meta::validate_rule(graph, *rule, reference, options_.ranks);
    for (const meta::RuleFinding& found : verdict.findings) {
      add(found.missing ? Kind::kImprovement : Kind::kError, found.what, found.problem, found.remedy);
    }
    exercised_.insert(verdict.exercised.begin(), verdict.exercised.end());
    for (const meta::Factor& factor : rule->factors) {
      if (factor.kind != meta::FactorKind::kWhole) splittable_.insert(factor.letter);
    }
  }

  const ExternalOp& op_;
  const CheckOptions& options_;
  OpReport report_;
  std::string node_;  ///< the node of the current example
  std::set<char> splittable_, exercised_;
};

}  // namespace

bool OpReport::is_correct() const {
  return std::ranges::none_of(findings, [](const OpFinding& finding) { return finding.kind == Kind::kError; });
}

std::string to_string(const OpReport& report) {
  constexpr std::array kNames{"error", "improvement", "untested"};
  std::string text;
  for (const OpFinding& finding : report.findings) {
    text += fmt::format("{}{} of op '{}', {}: {}; {}", text.empty() ? "" : "\n",
                        kNames.at(static_cast<size_t>(finding.kind)), report.op, finding.what, finding.problem,
                        finding.remedy);
    if (!finding.node.empty()) text += fmt::format(" (in {})", finding.node);
  }
  if (!text.empty()) return text;
  return fmt::format(
      "op '{}' is correct{}", report.op,
      report.has_rule ? "" : "; it has no rule, so every rank of a meta device computes the whole result");
}

OpReport check_op(std::string_view name, const std::vector<OpCase>& cases, const CheckOptions& options) {
  const ExternalOp* op = find_op(name);
  require<InvalidArgument>(op != nullptr,
                           "[check_op] there is no external op '{}'; call register_op() first; there are: {}", name,
                           fmt::join(registered_ops(), ", "));
  require<InvalidArgument>(!cases.empty(), "[check_op {}] expected at least one example", name);
  Checker checker(*op, options);
  for (const OpCase& example : cases) checker.check(example);
  return checker.finish();
}

}  // namespace shoal
