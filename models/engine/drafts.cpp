#include "models/engine/drafts.h"

#include <algorithm>

namespace shoal::models {

std::vector<int32_t> draft_tokens(std::span<const int32_t> tokens, int64_t most) {
  const auto count = static_cast<int64_t>(tokens.size());
  if (most <= 0 || count <= kDraftMatch) return {};
  const std::span<const int32_t> end = tokens.last(kDraftMatch);
  for (int64_t at = count - kDraftMatch - 1; at >= 0; --at) {
    if (!std::ranges::equal(tokens.subspan(static_cast<size_t>(at), kDraftMatch), end)) continue;
    const int64_t from = at + kDraftMatch, length = std::min(most, count - from);
    const auto found = tokens.subspan(static_cast<size_t>(from), static_cast<size_t>(length));
    return {found.begin(), found.end()};
  }
  return {};
}

}  // namespace shoal::models
