// The sharding rules of all ops as text (grammar: meta/rules/rule.h). One function for each op family, in a file named
// like the family's in graph/ops/; table.cpp joins them. A function gets a node whose shapes are checked
// already and writes one operand for each source: "-" where it is absent, `1` on broadcast axes.
#pragma once

#include <string>
#include <string_view>
#include <vector>

#include "graph/tensor.h"

namespace shoal::meta::rules {

std::string get_rows(const Tensor& node);
std::string set_rows(const Tensor& node);
std::string mul_mat(const Tensor& node);
std::string mul_mat_id(const Tensor& node);
std::string binary(const Tensor& node);
std::string scale(const Tensor& node);
std::string unary(const Tensor& node);
std::string clamp(const Tensor& node);
std::string glu(const Tensor& node);
std::string norm(const Tensor& node);
std::string soft_max(const Tensor& node);
std::string rope(const Tensor& node);
std::string sum_rows(const Tensor& node);
std::string argmax(const Tensor& node);
std::string top_k(const Tensor& node);
std::string argsort(const Tensor& node);
std::string attention(const Tensor& node);
std::string cast(const Tensor& node);
std::string contiguous(const Tensor& node);
std::string repeat(const Tensor& node);

// Pieces shared by the rules.

/// "a, -, b": the operands of the node's sources, "-" where a source is absent.
std::string sources(const Tensor& node, const std::vector<std::string>& operands);
/// The letter, or "1" where the source has length 1 and the result more (or none) on this axis.
std::string broadcast(char letter, int64_t source_length, int64_t result_length);
/// An axis that `letter` (of `length`) has in groups: "h", "h/4". `spare` is a letter of its own, whole, for an axis
/// that has elements although there are no groups (length 0).
std::string grouped(char letter, char spare, int64_t length, int64_t groups);
/// " | linear 0 2": those of the given sources that may be Partial, i.e. are of a type that can be summed.
std::string linear(const Tensor& node, const std::vector<int>& sources);

}  // namespace shoal::meta::rules
