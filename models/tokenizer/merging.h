// Merges adjacent symbols, for all kinds of byte-pair encoding. Repeatedly merges the pair with the lowest rank (the
// leftmost pair among equal ranks) until no pair can be merged. Each merge queues at most two new pairs, so the time is
// O(n log n) for any text. Pure function.
#pragma once

#include <cstddef>
#include <cstdint>
#include <optional>
#include <queue>
#include <vector>

namespace shoal::models {

/// A range of a text, with the indices of its neighbours (kNone at the ends). Length 0 means that the symbol was merged
/// into another symbol.
struct Symbol {
  static constexpr size_t kNone = static_cast<size_t>(-1);
  size_t start = 0, length = 0;
  size_t previous = kNone, next = kNone;
  int32_t id = -1;  ///< set by the caller; after a merge, MergedPair::id
};

/// Result of merging a pair.
struct MergedPair {
  float rank = 0;
  int32_t id = -1;
};

/// Links consecutive symbols as neighbours.
inline void link(std::vector<Symbol>& symbols) {
  for (size_t i = 0; i < symbols.size(); ++i) {
    symbols[i].previous = i == 0 ? Symbol::kNone : i - 1;
    symbols[i].next = i + 1 == symbols.size() ? Symbol::kNone : i + 1;
  }
}

/// Merges `symbols` in place. `rank(left, right)` returns a std::optional<MergedPair>, which is nullopt if the pair is
/// never merged.
template <class Rank>
void merge(std::vector<Symbol>& symbols, const Rank& rank) {
  struct Pair {
    MergedPair merged;
    size_t left, right;
    size_t length;  // total length of both symbols when the pair was queued
    bool operator<(const Pair& other) const {
      return merged.rank != other.merged.rank ? merged.rank > other.merged.rank : left > other.left;
    }
  };
  std::priority_queue<Pair> queue;
  const auto offer = [&](size_t left, size_t right) {
    if (left == Symbol::kNone || right == Symbol::kNone) return;
    const Symbol &a = symbols[left], &b = symbols[right];
    if (const std::optional<MergedPair> merged = rank(a, b)) queue.push({*merged, left, right, a.length + b.length});
  };
  for (size_t i = 1; i < symbols.size(); ++i) offer(i - 1, i);
  while (!queue.empty()) {
    const Pair pair = queue.top();
    queue.pop();
    Symbol& left = symbols[pair.left];
    Symbol& right = symbols[pair.right];
    // Skips an outdated pair. One of its symbols was merged after the pair was queued.
    if (left.length == 0 || right.length == 0 || left.length + right.length != pair.length) continue;
    left.length = pair.length;
    left.id = pair.merged.id;
    left.next = right.next;
    right.length = 0;
    if (left.next != Symbol::kNone) symbols[left.next].previous = pair.left;
    offer(left.previous, pair.left);
    offer(pair.left, left.next);
  }
}

}  // namespace shoal::models
