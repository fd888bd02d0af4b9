#include "tools/cli/suggest.h"

#include <fmt/format.h>

#include <algorithm>
#include <utility>
#include <vector>

namespace shoal::tools {
namespace {

/// In front.
size_t dashes_of(std::string_view text) {
  return std::min(text.find_first_not_of('-'), text.size());
}

/// Slips that still leave a name recognisable.
size_t most_slips(size_t length) {
  if (length < 3) return 0;
  return length < 6 ? 1 : 2;
}

/// Of names without their dashes.
std::string nearest_bare(std::string_view bare, std::span<const std::string> known) {
  size_t least = most_slips(bare.size()) + 1;
  std::string best, begun;
  int beginnings = 0;
  for (const std::string& name : known) {
    const std::string_view other = std::string_view(name).substr(dashes_of(name));
    const size_t distance = edit_distance(bare, other);
    if (distance < least) least = distance, best = name;
    if (bare.size() >= 3 && other.starts_with(bare)) ++beginnings, begun = name;
  }
  return beginnings == 1 ? begun : best;
}

}  // namespace

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

std::string nearest(std::string_view text, std::span<const std::string> known) {
  const size_t dashes = dashes_of(text);
  std::vector<std::string> alike, others;
  for (const std::string& name : known) (dashes_of(name) == dashes ? alike : others).push_back(name);
  const std::string best = nearest_bare(text.substr(dashes), alike);
  return best.empty() && dashes == 1 ? nearest_bare(text.substr(dashes), others) : best;
}

std::string did_you_mean(std::string_view text, std::span<const std::string> known) {
  const std::string name = nearest(text, known);
  return name.empty() ? "" : fmt::format(" (did you mean {}?)", name);
}

}  // namespace shoal::tools
