// add, sub, mul, div. A sum is linear in both sources together: of a Partial and a mirrored one, rank 0 alone adds
// the mirrored one.
#include <fmt/format.h>

#include "meta/rules/rules.h"

namespace shoal::meta::rules {
namespace {

std::string operand(const Tensor& source, const Tensor& node) {
  std::string text;
  for (int axis = 0; axis < kMaxDims; ++axis) {
    text += broadcast(static_cast<char>('a' + axis), source.shape[axis], node.shape[axis]) + " ";
  }
  return text;
}

std::string_view linear_in(Op op) {
  if (op == Op::kMul) return "0 1";
  return op == Op::kDiv ? "0" : "0+1";
}

}  // namespace

std::string binary(const Tensor& node) {
  return fmt::format("{}, {} -> a b c d | linear {}", operand(*node.src[0], node), operand(*node.src[1], node),
                     linear_in(node.op));
}

}  // namespace shoal::meta::rules
