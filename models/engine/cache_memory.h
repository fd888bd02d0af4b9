// Divides the cache of an engine among sequences, and keeps the contents for later sequences with the same beginning.
//
//   SequenceMemory memory;
//   memory.attach(tokens, ...)   the longest cached beginning: 64 of 100 tokens
//   memory.extend(100)           pages for the positions 64 to 99, and a slot for the state
//   ... a batch computes the tokens ...
//   memory.advance(tokens, 100)  full pages become visible to other sequences; pages behind windows become free
//
// States of recurrent layers: a batch reads the state from one slot and may write the new state to another slot. To
// keep a state, the sequence writes its next state to another slot. So nothing is copied. States are kept only at ends
// of pages, because a later sequence also needs full pages.
#pragma once

#include <cstdint>
#include <span>
#include <string>
#include <vector>

#include "models/arch/kv_cache.h"
#include "models/engine/pool.h"
#include "models/engine/prefix_tree.h"
#include "models/session/inputs.h"

namespace shoal::models {

/// The pools and the tree.
class CacheMemory {
 public:
  explicit CacheMemory(const KvCache& cache);

  /// Whether the model has recurrent layers.
  bool has_states() const { return slots_.size() > 0; }
  int64_t page() const { return page_; }
  /// Maximum number of tokens of one sequence: all pages of the groups without a window.
  int64_t most_tokens() const;
  /// One pool per page group.
  const std::vector<Pool>& pages() const { return pages_; }
  const Pool& slots() const { return slots_; }

 private:
  friend class SequenceMemory;
  int32_t take_page(size_t group);
  int32_t take_slot();
  void forget_slot(PrefixNode& node);

  int64_t page_;
  std::vector<PageGroup> groups_;
  std::vector<Pool> pages_;  ///< one per group
  Pool slots_;
  PrefixTree tree_;
};

/// The part of the cache that belongs to one sequence.
class SequenceMemory {
 public:
  explicit SequenceMemory(CacheMemory& cache, const std::string& salt = {});
  ~SequenceMemory();
  SequenceMemory(const SequenceMemory&) = delete;
  SequenceMemory& operator=(const SequenceMemory&) = delete;

  /// Number of tokens whose keys, values and states this sequence has.
  int64_t computed() const { return computed_; }
  /// Takes the longest cached beginning of `tokens` with which a batch can continue, at most `limit` tokens. The
  /// sequence must be empty. Returns the number of tokens whose pages without a window are cached. This number is above
  /// computed() if states or pages of windows are missing.
  int64_t attach(std::span<const int32_t> tokens, int64_t limit);
  /// Number of pages of each group that extend(to) would take.
  std::vector<int64_t> pages_for(int64_t to) const;
  /// The largest position for which there are enough free pages.
  int64_t reach() const;
  /// Takes pages up to position `to`, and a slot. If `keeps_old` is true, the state at computed() survives the batch,
  /// so that discard() is possible. Returns false and takes nothing if there are too few free pages or slots.
  bool extend(int64_t to, bool keeps_old = false);
  /// The pages and slots for the batch that computes the tokens from computed() on.
  BatchSequence batch_sequence() const;
  /// Declares the tokens before `to` as computed. `tokens` has at least `to` tokens. If `to` is the end of a page and
  /// `keep` is not kNothing, later sequences can continue from the state at `to`. With kStateInsteadOfLast, the
  /// sequence keeps only the newest of these states.
  enum class Keep : uint8_t { kNothing, kState, kStateInsteadOfLast };
  void advance(std::span<const int32_t> tokens, int64_t to, Keep keep = Keep::kNothing);
  /// Ends a batch whose state is not used: computed() stays, and the slot of the new state becomes free.
  void discard();
  /// Frees everything. The contents stay available for other sequences.
  void release();

 private:
  void move_to(PrefixNode& node);
  void publish(std::span<const int32_t> tokens);
  void drop_behind_windows();
  void keep_state(Keep keep);

  CacheMemory& cache_;
  PrefixNode& root_;
  PrefixNode* last_;                         ///< node of the last full page
  PrefixNode* rolling_ = nullptr;            // node with the state of kStateInsteadOfLast
  int64_t rolling_slot_ = -1;                // slot of this state
  int64_t computed_ = 0, published_ = 0;     ///< tokens; full pages in the tree
  std::vector<std::vector<int32_t>> pages_;  ///< list of each group; -1: behind the window
  std::vector<size_t> first_;                ///< for each group, the index of the first page that is held
  int32_t reads_ = -1, writes_ = -1;
};

}  // namespace shoal::models
