// Exchange: one rank's view of one collective while it runs; what the algorithms are written against. Made on the
// rank's thread, used there only. An algorithm prepares what others will read, meets, and reads what others prepared:
//
//   std::memcpy(x.slot(x.rank()), x.in(), bytes);   // mine, before the meeting
//   x.meet();                                       // throws CommError
//   sum(dtype, slots of all ranks, ...);            // theirs, after it
#pragma once

#include <span>
#include <utility>
#include <vector>

#include "collectives/host/rank_memory.h"

namespace shoal::collectives::host {

/// What an Exchange needs and a rank keeps between calls, so that a call allocates nothing.
struct RankScratch {
  explicit RankScratch(std::vector<RankMemory*> blocks)
      : memory(std::move(blocks)), sources(memory.size()), targets(memory.size()) {}

  const std::vector<RankMemory*> memory;  ///< of all ranks
  std::vector<const std::byte*> sources;
  std::vector<std::byte*> targets;
  uint32_t calls = 0;  ///< so far; the same on every rank
};

class Exchange {
 public:
  Exchange(Rendezvous& rendezvous, RankScratch& scratch, int rank, const Call& call);

  int rank() const { return rank_; }
  int size() const { return rendezvous_.size(); }
  const Call& call() const { return call_; }
  DType dtype() const { return call_.dtype; }
  const std::byte* in() const { return static_cast<const std::byte*>(call_.in); }
  std::byte* out() const { return static_cast<std::byte*>(call_.out); }

  /// Bytes of `count` elements of the call's dtype.
  size_t bytes(int64_t count) const;
  /// Would `count` elements fit into a slot?
  bool fits_slot(int64_t count) const { return bytes(count) <= kSlotBytes; }

  /// Waits for all ranks. The first meeting of a call also checks that all ranks queued the same collective.
  /// Throws CommError.
  void meet();

  /// A rank's staging slot: written by its rank before the first meeting, read by all after it.
  std::byte* slot(int rank) const { return scratch_.memory[rank]->slots[parity_].data(); }
  /// Where another rank's call reads; after the first meeting, until the last.
  const std::byte* in_of(int rank) const { return post(rank).in; }

  // The same of all ranks in rank order, valid until the next of these calls.
  std::span<const std::byte* const> slots();
  std::span<const std::byte* const> ins();
  std::span<std::byte* const> outs();

 private:
  Post& post(int rank) const { return scratch_.memory[rank]->posts[parity_]; }
  void check_agreement() const;

  Rendezvous& rendezvous_;
  RankScratch& scratch_;
  const int rank_;
  const Call& call_;
  const uint32_t parity_;  ///< of the number of the call
  bool have_met_ = false;
};

/// memcpy that allows size 0 with null pointers and does nothing onto itself.
void copy_bytes(std::byte* to, const std::byte* from, size_t size);

}  // namespace shoal::collectives::host
