// Prints the choices of propagation as text. Each node has one line, with its strategy, the layouts of its sources and
// the layout of its result:
//
//   y            mul_mat    split k [384:{0} 384:{1}]: split 0 [384:{0} 384:{1}], split 0 [384:{0} 384:{1}] -> partial
#pragma once

#include <fmt/format.h>

#include <algorithm>
#include <string>

#include "meta/plan/propagate.h"

namespace shoal::meta {

/// The text of a strategy. Examples are "split k [384:{0} 384:{1}]" and "candidates [20:{0} 20:{1}]". A lookup of
/// candidates gives "candidates". Views and concat give "on runs". Other texts are "by expert", "linear" and "whole".
inline std::string strategy_text(const Tensor& node, const NodeChoice& choice) {
  if (choice.factor >= 0) {
    const char letter = rule_for(node)->factors[choice.factor].letter;
    return fmt::format("split {} [{}]", letter, choice.partition.to_string());
  }
  if (choice.by_candidates) return fmt::format("candidates [{}]", choice.partition.to_string());
  if (choice.selected) return "candidates";
  if (choice.routed && !is_view(node.op)) return "by expert";
  const bool split = choice.result.is_split() || std::any_of(choice.sources.begin(), choice.sources.end(),
                                                             [](const Layout& l) { return l.is_split(); });
  return split ? "on runs" : choice.result.is_partial() ? "linear" : "whole";
}

inline std::string to_string(const Propagation& propagation, const GraphRange& range) {
  std::string text;
  for (int i = range.begin; i < range.end; ++i) {
    const Tensor& node = *range.graph->nodes()[i];
    const NodeChoice& choice = propagation.at(&node);
    std::string sources;
    for (size_t s = 0; s < node.src.size(); ++s) {
      if (node.src[s] == nullptr) continue;
      sources += (sources.empty() ? " " : ", ") + choice.sources[s].to_string();
    }
    text += fmt::format("{:<12} {:<10} {}:{} -> {}\n", node.name, name_of(node.op), strategy_text(node, choice),
                        sources, choice.result.to_string());
  }
  return text;
}

}  // namespace shoal::meta
