// Prints graphs as text; graph/parse.cpp parses them.
#include "graph/text.h"

#include <fmt/format.h>

#include <algorithm>
#include <cctype>
#include <iterator>
#include <unordered_map>
#include <unordered_set>

#include "graph/param_text.h"

namespace shoal {
namespace {

/// The column in which comments start.
constexpr int kCommentColumn = 56;

/// Writes '_' for each character that a printed name cannot contain.
std::string printable(std::string_view name) {
  std::string text(name.empty() ? "_" : name);
  for (char& c : text) {
    if (!std::isalnum(static_cast<unsigned char>(c)) && c != '_' && c != '.' && c != '-') c = '_';
  }
  return text;
}

/// The printed names of one graph's tensors. Printed names are unique even if tensor names are not.
class Names {
 public:
  void add(const Tensor* tensor) {
    const std::string wanted = printable(tensor->name);
    std::string name = wanted;
    for (int copy = 2; !taken_.insert(name).second; ++copy) name = fmt::format("{}.{}", wanted, copy);
    names_.emplace(tensor, std::move(name));
  }
  std::string operator()(const Tensor* tensor) const {
    const auto found = names_.find(tensor);
    return found == names_.end() ? printable(tensor->name) : found->second;
  }

 private:
  std::unordered_set<std::string> taken_;
  std::unordered_map<const Tensor*, std::string> names_;
};

std::string_view leaf_keyword(const Tensor& leaf) {
  if (leaf.role == Role::kInput) return "input";
  return leaf.role == Role::kCache ? "cache" : "weight";
}

std::string leaf_statement(const Tensor& leaf, const Names& names) {
  return fmt::format("{:<6} %{} {} {}", leaf_keyword(leaf), names(&leaf), name_of(leaf.dtype), to_string(leaf.shape));
}

std::string node_statement(const Tensor& node, const Names& names) {
  // Absent sources at the end are not printed.
  const auto end = std::find_if(node.src.rbegin(), node.src.rend(), [](const Tensor* source) { return source; }).base();
  std::string sources;
  for (auto source = node.src.begin(); source != end; ++source) {
    if (!sources.empty()) sources += ", ";
    sources += *source != nullptr ? fmt::format("%{}", names(*source)) : "_";
  }
  const std::string params = params_to_string(node.op, node.params);
  return fmt::format("%{} = {}({}){}{}", names(&node), name_of(node.op), sources, params.empty() ? "" : " ", params);
}

std::string comment(const Tensor& node) {
  return fmt::format("# {} {}", name_of(node.dtype), to_string(node.shape));
}

}  // namespace

std::string params_to_string(Op op, const OpParams& params) {
  const auto values = param_texts(params);
  const auto defaults = param_texts(info(op).default_params);
  std::string text;
  for (size_t i = 0; i < values.size(); ++i) {
    if (i < defaults.size() && values[i] == defaults[i]) continue;
    text += fmt::format("{}{}={}", text.empty() ? "" : ", ", values[i].first, values[i].second);
  }
  return text.empty() ? text : fmt::format("{{{}}}", text);
}

std::string to_string(const Tensor& node) {
  const Names names;
  if (node.is_leaf()) return leaf_statement(node, names);
  return fmt::format("{}  {}", node_statement(node, names), comment(node));
}

std::string to_string(const Graph& graph) {
  // Inputs that no node uses are also printed.
  std::vector<const Tensor*> leaves(graph.inputs().begin(), graph.inputs().end());
  const std::unordered_set<const Tensor*> inputs(leaves.begin(), leaves.end());
  for (const Tensor* leaf : graph.leaves()) {
    if (!inputs.contains(leaf)) leaves.push_back(leaf);
  }
  Names names;
  for (const Tensor* leaf : leaves) names.add(leaf);
  for (const Tensor* node : graph.nodes()) names.add(node);

  std::string text;
  std::string outputs;
  const auto note_output = [&](const Tensor* tensor) {
    if (tensor->is_output) outputs += fmt::format("output %{}\n", names(tensor));
  };
  for (const Tensor* leaf : leaves) {
    text += leaf_statement(*leaf, names) + "\n";
    note_output(leaf);
  }
  for (const Tensor* node : graph.nodes()) {
    fmt::format_to(std::back_inserter(text), "{:<{}}  {}\n", node_statement(*node, names), kCommentColumn - 2,
                   comment(*node));
    note_output(node);
  }
  return text + outputs;
}

}  // namespace shoal
