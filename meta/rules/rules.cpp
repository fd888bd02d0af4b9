#include "meta/rules/rules.h"

#include <fmt/format.h>

namespace shoal::meta::rules {

std::string sources(const Tensor& node, const std::vector<std::string>& operands) {
  std::string text;
  for (size_t i = 0; i < node.src.size(); ++i) {
    if (i > 0) text += ", ";
    text += node.src[i] ? operands.at(i) : "-";
  }
  return text;
}

std::string broadcast(char letter, int64_t source_length, int64_t result_length) {
  return source_length == 1 && result_length != 1 ? "1" : std::string(1, letter);
}

std::string grouped(char letter, char spare, int64_t length, int64_t groups) {
  if (length == groups) return std::string(1, letter);
  if (length == 0) return fmt::format("({})", spare);
  return fmt::format("{}/{}", letter, length / groups);
}

std::string linear(const Tensor& node, const std::vector<int>& sources) {
  std::string text;
  for (const int i : sources) {
    const DTypeTraits& type = traits(node.src[i]->dtype);
    if (type.is_float || type.dtype == DType::kI32) text += fmt::format(" {}", i);
  }
  return text.empty() ? "" : " | linear" + text;
}

}  // namespace shoal::meta::rules
