// Graphs for Graphviz: leaves are boxes, nodes ellipses, views dashed, outputs have a double line.
#include <fmt/format.h>

#include <iterator>
#include <unordered_map>

#include "graph/text.h"

namespace shoal {
namespace {

std::string escape(std::string_view text) {
  std::string escaped;
  for (const char c : text) {
    if (c == '"' || c == '\\') escaped += '\\';
    escaped += c;
  }
  return escaped;
}

std::string label(const Tensor& tensor) {
  std::string text = escape(tensor.name);
  if (!tensor.is_leaf()) text += fmt::format("\\n{}", name_of(tensor.op));
  const std::string params = params_to_string(tensor.op, tensor.params);
  if (!params.empty()) text += fmt::format(" {}", escape(params));
  return fmt::format("{}\\n{} {}", text, name_of(tensor.dtype), to_string(tensor.shape));
}

std::string attributes(const Tensor& tensor) {
  std::string text = tensor.is_leaf() ? "shape=box" : "shape=ellipse";
  if (is_view(tensor.op)) text += ", style=dashed";
  if (tensor.is_persistent()) text += ", style=filled, fillcolor=lightgrey";
  if (is_collective(tensor.op)) text += ", style=filled, fillcolor=lightblue";
  if (tensor.is_output) text += ", peripheries=2";
  return text;
}

}  // namespace

std::string to_dot(const Graph& graph) {
  std::string text = fmt::format("digraph \"{}\" {{\n", escape(graph.name()));
  const auto out = std::back_inserter(text);
  std::unordered_map<const Tensor*, size_t> numbers;
  const auto declare = [&](const Tensor* tensor) {
    const auto [entry, is_new] = numbers.emplace(tensor, numbers.size());
    if (is_new) fmt::format_to(out, "  t{} [label=\"{}\", {}];\n", entry->second, label(*tensor), attributes(*tensor));
  };
  for (const Tensor* input : graph.inputs()) declare(input);
  for (const Tensor* leaf : graph.leaves()) declare(leaf);
  for (const Tensor* node : graph.nodes()) {
    declare(node);
    for (size_t i = 0; i < node->src.size(); ++i) {
      if (!node->src[i]) continue;
      fmt::format_to(out, "  t{} -> t{} [label=\"{}\"];\n", numbers.at(node->src[i]), numbers.at(node), i);
    }
  }
  return text + "}\n";
}

}  // namespace shoal
