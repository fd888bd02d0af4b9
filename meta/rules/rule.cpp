#include "meta/rules/rule.h"

#include <fmt/ranges.h>

namespace shoal::meta {
namespace {

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

}  // namespace

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
