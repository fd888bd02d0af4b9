#include "tools/cli/suggest.h"

#include <fmt/format.h>

#include <algorithm>
#include <utility>
#include <vector>

namespace shoal::tools {
namespace {

std::string_view without_dashes(std::string_view text) {
  return text.substr(std::min(text.find_first_not_of('-'), text.size()));
}

/// "tmep" -> "temp" is 1.
size_t edit_distance(std::string_view one, std::string_view other) {
  // Row i: from the first i characters of one to each beginning of the other. Only the last three rows count.
  std::vector<size_t> before, last, row(other.size() + 1);
  for (size_t j = 0; j <= other.size(); ++j) row[j] = j;
  for (size_t i = 1; i <= one.size(); ++i) {
    before = std::exchange(last, row);
    row[0] = i;
    for (size_t j = 1; j <= other.size(); ++j) {
      row[j] = std::min({last[j] + 1, row[j - 1] + 1, last[j - 1] + (one[i - 1] == other[j - 1] ? 0 : 1)});
      const bool swapped = i > 1 && j > 1 && one[i - 1] == other[j - 2] && one[i - 2] == other[j - 1];
      if (swapped) row[j] = std::min(row[j], before[j - 2] + 1);
    }
  }
  return row.back();
}

}  // namespace

std::string did_you_mean(std::string_view text, std::span<const std::string> known) {
  const std::string_view bare = without_dashes(text);
  if (bare.size() < 3) return "";
  size_t least = bare.size() < 6 ? 2 : 3;
  std::string best, begun;
  int beginnings = 0;
  for (const std::string& name : known) {
    const std::string_view other = without_dashes(name);
    const size_t distance = edit_distance(bare, other);
    if (distance < least) least = distance, best = name;
    if (other.starts_with(bare)) ++beginnings, begun = name;
  }
  if (beginnings > 0) best = beginnings == 1 ? begun : "";
  return best.empty() ? "" : fmt::format(" (did you mean {}?)", best);
}

}  // namespace shoal::tools
