#include "meta/rules/rule.h"

#include <fmt/format.h>

#include <algorithm>
#include <array>

#include "base/error.h"
#include "graph/text.h"

namespace shoal::meta {
namespace {

constexpr std::array<std::string_view, 4> kKindNames = {"parallel", "summed", "selected", "whole"};

std::string text_of(const Rule& rule, const AxisTerm& term) {
  if (term.factor < 0) return "1";
  const Factor& factor = rule.factors[term.factor];
  std::string text(1, factor.letter);
  if (factor.kind == FactorKind::kWhole) text = "(" + text + ")";
  if (factor.kind == FactorKind::kSelected) text = "[" + text + "]";
  if (term.repeat != 1) text = fmt::format("{}*{}", term.repeat, text);
  if (term.group != 1) text = fmt::format("{}/{}", text, term.group);
  return text;
}

std::string text_of(const Rule& rule, const Operand& operand) {
  if (!operand.present) return "-";
  int used = kMaxDims;
  while (used > 1 && operand.axes[used - 1].factor < 0) --used;
  std::string text = text_of(rule, operand.axes[0]);
  for (int axis = 1; axis < used; ++axis) text += " " + text_of(rule, operand.axes[axis]);
  return text;
}

/// The checks of a rule that was not made by parse_rule.
class RuleCheck {
 public:
  RuleCheck(const Rule& rule, const Tensor& node) : rule_(rule), node_(node) {}

  void run() const {
    expect(rule_.sources.size() == node_.src.size(), "{} sources, got {}", node_.src.size(), rule_.sources.size());
    for (const Factor& factor : rule_.factors) check(factor);
    for (size_t i = 0; i < node_.src.size(); ++i) check(rule_.sources[i], node_.src[i]);
    check(rule_.result, &node_);
    for (const std::vector<int>& set : rule_.linear) {
      const auto is_source = [&](int i) {
        return i >= 0 && i < static_cast<int>(node_.src.size()) && node_.src[static_cast<size_t>(i)] != nullptr;
      };
      expect(std::ranges::all_of(set, is_source), "present sources to be linear in, got {}", fmt::join(set, "+"));
    }
  }

 private:
  template <class... Args>
  void expect(bool condition, fmt::format_string<Args...> format, Args&&... args) const {
    if (condition) return;
    fail<InvalidArgument>("the sharding rule of {}: expected {}", shoal::to_string(node_),
                          fmt::format(format, std::forward<Args>(args)...));
  }

  void check(const Factor& factor) const {
    expect(factor.length >= 0 && factor.unit >= 1, "a length and a unit of '{}', got {} and {}", factor.letter,
           factor.length, factor.unit);
    expect(factor.kind <= FactorKind::kWhole, "a kind of '{}', got {}", factor.letter, static_cast<int>(factor.kind));
    expect(factor.kind != FactorKind::kSelected || std::holds_alternative<SelectParams>(node_.params),
           "no selected '{}' in an op without index ranges", factor.letter);
  }

  void check(const Operand& operand, const Tensor* tensor) const {
    expect(operand.present == (tensor != nullptr), "operands for the sources that are present and for them alone");
    for (int axis = 0; axis < kMaxDims && tensor != nullptr; ++axis) {
      if (!fits(operand.axes[axis], tensor->shape[axis])) {
        expect(false, "a factor that fits axis {} of {}, got number {} of {}", axis, describe(*tensor),
               operand.axes[axis].factor, rule_.factors.size());
      }
    }
  }

  bool fits(const AxisTerm& term, int64_t length) const {
    if (term.factor < 0) return length == 1;
    if (term.factor >= static_cast<int>(rule_.factors.size()) || term.group < 1 || term.repeat < 1) return false;
    const Factor& factor = rule_.factors[static_cast<size_t>(term.factor)];
    return factor.length % term.group == 0 && length % term.repeat == 0 &&
           factor.length / term.group == length / term.repeat;
  }

  const Rule& rule_;
  const Tensor& node_;
};

}  // namespace

void check_rule(const Rule& rule, const Tensor& node) {
  RuleCheck(rule, node).run();
}

std::string_view name_of(FactorKind kind) {
  return kKindNames.at(static_cast<size_t>(kind));
}

int Rule::find(char letter) const {
  for (size_t f = 0; f < factors.size(); ++f) {
    if (factors[f].letter == letter) return static_cast<int>(f);
  }
  return -1;
}

int Rule::axis_of(const Operand& operand, int factor) {
  for (int axis = 0; axis < kMaxDims; ++axis) {
    if (operand.present && operand.axes[axis].factor == factor) return axis;
  }
  return -1;
}

std::string to_string(const Rule& rule) {
  std::string text;
  for (const Operand& source : rule.sources) text += (text.empty() ? "" : ", ") + text_of(rule, source);
  text += (text.empty() ? "-> " : " -> ") + text_of(rule, rule.result);
  std::string sums, linear;
  for (const Factor& factor : rule.factors) {
    if (factor.kind == FactorKind::kSummed) sums += fmt::format(" {}", factor.letter);
  }
  for (const std::vector<int>& set : rule.linear) linear += fmt::format(" {}", fmt::join(set, "+"));
  if (!sums.empty()) text += " | sum" + sums;
  if (!linear.empty()) text += " | linear" + linear;
  return text;
}

}  // namespace shoal::meta
