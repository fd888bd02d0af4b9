// repeat: an axis of the result is n copies of the source's, each split alike.
#include <fmt/format.h>

#include "meta/rules/rules.h"

namespace shoal::meta::rules {
namespace {

/// What an axis is called in the source and in the result.
struct Names {
  std::string source, result;
};

Names names(int axis, int64_t from, int64_t to) {
  const char letter = static_cast<char>('a' + axis);
  if (from == to) return {{letter}, {letter}};
  // No copy at all: nothing of the source reaches the result.
  if (to == 0) return {fmt::format("({})", letter), fmt::format("({})", static_cast<char>('w' + axis))};
  return {{letter}, fmt::format("{}*{}", to / from, letter)};
}

}  // namespace

std::string repeat(const Tensor& node) {
  std::string source, result;
  for (int axis = 0; axis < kMaxDims; ++axis) {
    const auto [from, to] = names(axis, node.src[0]->shape[axis], node.shape[axis]);
    source += from + " ";
    result += to + " ";
  }
  return source + "-> " + result + linear(node, {0});
}

}  // namespace shoal::meta::rules
