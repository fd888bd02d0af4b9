// The rule of every op: one row for each enumerator, in the order of the enumeration. No rule: the op's sources are
// gathered and it runs mirrored; views and concat map layouts on runs instead (meta/layout/layout.h).
#include <iterator>

#include "meta/rules/rule.h"
#include "meta/rules/rules.h"

namespace shoal::meta {
namespace {

struct Row {
  Op op;
  std::string (*text)(const Tensor& node);
};

constexpr Row kTable[] = {
    {Op::kNone, nullptr},

    {Op::kGetRows, rules::get_rows},
    {Op::kSetRows, rules::set_rows},

    {Op::kMulMat, rules::mul_mat},
    {Op::kMulMatId, rules::mul_mat_id},

    {Op::kAdd, rules::binary},
    {Op::kSub, rules::binary},
    {Op::kMul, rules::binary},
    {Op::kDiv, rules::binary},
    {Op::kScale, rules::scale},
    {Op::kUnary, rules::unary},
    {Op::kClamp, rules::clamp},
    {Op::kGlu, rules::glu},

    {Op::kRmsNorm, rules::norm},
    {Op::kLayerNorm, rules::norm},
    {Op::kSoftMax, rules::soft_max},
    {Op::kRope, rules::rope},
    {Op::kSumRows, rules::sum_rows},
    {Op::kArgmax, rules::argmax},
    {Op::kTopK, rules::top_k},
    {Op::kArgsort, rules::argsort},
    {Op::kAttention, rules::attention},

    {Op::kCast, rules::cast},
    {Op::kContiguous, rules::contiguous},
    {Op::kConcat, nullptr},
    {Op::kRepeat, rules::repeat},
    {Op::kFill, nullptr},  // without sources there is nothing to split: every rank fills its own

    {Op::kReshape, nullptr},
    {Op::kSlice, nullptr},
    {Op::kPermute, nullptr},

    {Op::kAllReduce, nullptr},
    {Op::kAllGather, nullptr},
    {Op::kReduceScatter, nullptr},
    {Op::kAllToAll, nullptr},
    {Op::kBroadcast, nullptr},
};

constexpr bool in_order() {
  for (size_t i = 0; i < std::size(kTable); ++i) {
    if (kTable[i].op != static_cast<Op>(i)) return false;
  }
  return std::size(kTable) == kOpCount;
}
static_assert(in_order(), "one row for each op, in the order of the enumeration");

}  // namespace

std::optional<Rule> rule_for(const Tensor& node) {
  if (!has_rule(node.op)) return std::nullopt;
  return parse_rule(kTable[static_cast<size_t>(node.op)].text(node), node);
}

bool has_rule(Op op) {
  return kTable[static_cast<size_t>(op)].text != nullptr;
}

}  // namespace shoal::meta
