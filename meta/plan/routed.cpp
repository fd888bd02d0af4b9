#include "meta/plan/routed.h"

#include <algorithm>
#include <array>

#include "graph/ops/ops.h"

namespace shoal::meta {
namespace {

/// Functions with f(0) = 0.
constexpr std::array kZeroPreserving{
    UnaryKind::kAbs,  UnaryKind::kNeg,       UnaryKind::kSgn,  UnaryKind::kStep,    UnaryKind::kTanh,
    UnaryKind::kElu,  UnaryKind::kRelu,      UnaryKind::kGelu, UnaryKind::kGeluErf, UnaryKind::kGeluQuick,
    UnaryKind::kSilu, UnaryKind::kHardSwish, UnaryKind::kSqr,  UnaryKind::kSqrt,    UnaryKind::kSin,
};

/// The tensor before any reshape, with the same elements in the same order.
const Tensor* without_reshapes(const Tensor* tensor) {
  while (tensor->op == Op::kReshape) tensor = tensor->src[0];
  return tensor;
}

bool has_same_rows(const Tensor& a, const Tensor& b) {
  return std::equal(a.shape.begin() + 1, a.shape.end(), b.shape.begin() + 1);
}

bool is_sum(const Tensor& node) {
  return node.op == Op::kAdd || node.op == Op::kSub;
}

/// The routing that all routed sources share; nullptr if the routings differ.
const RowRouting* common(Routings routings) {
  const RowRouting* found = nullptr;
  for (const RowRouting* routing : routings) {
    if (routing == nullptr) continue;
    if (found != nullptr && !(*found == *routing)) return nullptr;
    found = routing;
  }
  return found;
}

/// Multiplies routed rows by experts without reducing the rows first. These experts must be split in the same way as
/// the experts that computed the rows, and both products must use the same ids.
std::optional<NodeChoice> product_strategy(const Tensor& node, const std::vector<Layout>& sources, Routings routings,
                                           const RowRouting& routing, const Rule& rule) {
  if (routings[1] == nullptr || !passes_routed(node, 1, routing)) return std::nullopt;
  const auto split = factor_split(rule, rule.sources[0], sources[0]);
  const bool alike = split && rule.factors[split->factor].kind == FactorKind::kSelected &&
                     split->partition == routing.experts && sources[2].is_mirrored();
  if (!alike) return std::nullopt;
  NodeChoice choice{
      {sources[0], Layout::partial(), Layout::mirrored()}, Layout::partial(), split->factor, split->partition};
  choice.routed = true;
  return choice;
}

}  // namespace

bool keeps_zeros(const Tensor& node, int index) {
  switch (node.op) {
    case Op::kMul:
    case Op::kGlu:
    case Op::kContiguous:
      return true;
    case Op::kCast:  // addends must not be rounded before they are summed
      return node.dtype == DType::kF32 || node.dtype == node.src[0]->dtype;
    case Op::kDiv:
      return index == 0;
    case Op::kScale:
      return std::get<ScaleParams>(node.params).bias == 0.0f;
    case Op::kClamp: {
      const auto& limits = std::get<ClampParams>(node.params);
      return limits.min <= 0.0f && limits.max >= 0.0f;
    }
    case Op::kUnary:
      return std::find(kZeroPreserving.begin(), kZeroPreserving.end(), std::get<UnaryParams>(node.params).kind) !=
             kZeroPreserving.end();
    case Op::kReshape:
      return node.shape[0] == node.src[0]->shape[0];
    default:
      return false;
  }
}

bool passes_routed(const Tensor& node, int index, const RowRouting& routing) {
  if (node.op != Op::kMulMatId) return is_sum(node) || keeps_zeros(node, index);
  // x must have one row for each expert of a token.
  return index == 1 && node.src[1]->shape[1] == node.src[2]->shape[0] && without_reshapes(node.src[2]) == routing.ids &&
         std::get<SelectParams>(node.params) == routing.select;
}

bool keeps_all_zeros(const Tensor& node, int index) {
  return keeps_zeros(node, index) || is_view(node.op) || node.op == Op::kSumRows || node.op == Op::kRepeat ||
         (node.op == Op::kMulMatId && index == 1);
}

bool selects_nothing(const Tensor& node, const SelectParams& params) {
  if (node.op != Op::kMulMatId && node.op != Op::kGetRows) return false;
  const auto& ranges = params.ranges;
  return !ranges.empty() && node.src.back()->dtype == DType::kI32 &&
         std::all_of(ranges.begin(), ranges.end(),
                     [](const IndexRange& range) { return range.length == 0 || range.begin >= kNoId; });
}

std::optional<NodeChoice> routed_strategy(const Tensor& node, const std::vector<Layout>& sources, Routings routings,
                                          const Rule* rule) {
  const RowRouting* routing = common(routings);
  if (routing == nullptr) return std::nullopt;
  if (node.op == Op::kMulMatId) {
    return rule != nullptr ? product_strategy(node, sources, routings, *routing, *rule) : std::nullopt;
  }
  NodeChoice choice{std::vector<Layout>(sources.size(), Layout::mirrored()), Layout::partial(), -1, {}};
  choice.routed = true;
  for (size_t i = 0; i < node.src.size(); ++i) {
    if (node.src[i] == nullptr) continue;
    if (routings[i] == nullptr) {
      if (is_sum(node) || !sources[i].is_mirrored()) return std::nullopt;
      continue;
    }
    const bool keeps = is_sum(node) || keeps_zeros(node, static_cast<int>(i));
    if (!keeps || (node.op != Op::kReshape && !has_same_rows(*node.src[i], node))) return std::nullopt;
    choice.sources[i] = Layout::partial();
  }
  return choice;
}

std::optional<RowRouting> routing_of(const Tensor& node, const NodeChoice& choice, Routings routings,
                                     const Rule* rule) {
  if (!choice.result.is_partial()) return std::nullopt;
  if (choice.routed) return *common(routings);
  const bool selects = choice.factor >= 0 && rule != nullptr && (node.op == Op::kMulMatId || node.op == Op::kGetRows) &&
                       rule->factors[choice.factor].kind == FactorKind::kSelected;
  if (!selects) return std::nullopt;
  return RowRouting{without_reshapes(node.src.back()), choice.partition, std::get<SelectParams>(node.params)};
}

}  // namespace shoal::meta
