#include "meta/check/shard_elements.h"

#include <algorithm>

namespace shoal::meta {

std::vector<int64_t> shard_elements(const Shape& shape, const Layout& layout, int rank) {
  std::vector<char> mine(layout.is_split() ? static_cast<size_t>(shape[layout.axis]) : 0, 0);
  int64_t position = 0;
  for (const Run& run : layout.partition.runs()) {
    const bool owned = std::find(run.owners.begin(), run.owners.end(), rank) != run.owners.end();
    for (int64_t i = 0; i < run.length; ++i) mine[static_cast<size_t>(position++)] = owned;
  }
  std::vector<int64_t> elements;
  int64_t flat = 0;
  std::array<int64_t, 4> at{};
  for (at[3] = 0; at[3] < shape[3]; ++at[3]) {
    for (at[2] = 0; at[2] < shape[2]; ++at[2]) {
      for (at[1] = 0; at[1] < shape[1]; ++at[1]) {
        for (at[0] = 0; at[0] < shape[0]; ++at[0], ++flat) {
          if (!layout.is_split() || mine[static_cast<size_t>(at[layout.axis])]) elements.push_back(flat);
        }
      }
    }
  }
  return elements;
}

}  // namespace shoal::meta
