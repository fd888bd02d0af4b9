#include <fmt/format.h>
#include <fmt/ranges.h>

#include "tests/support/random_graph.h"

namespace shoal::test {

std::string to_string(const RandomCase& one) {
  std::string text = fmt::format("seed {} on {} ranks\n{}", one.seed, one.ranks, one.graph);
  for (const auto& [name, layout] : one.layouts) {
    const auto it = one.segments.find(name);
    const std::string form = it == one.segments.end() ? "" : fmt::format(", as segments {}", it->second);
    text += fmt::format("  {}: {}{}\n", name, layout.to_string(), form);
  }
  for (const auto& [name, one_of] : one.constraints) {
    text += fmt::format("  {} {}: {}\n", name, one_of.required ? "requires" : fmt::format("hint {}", one_of.factor),
                        one_of.layout.to_string());
  }
  return text;
}

}  // namespace shoal::test
