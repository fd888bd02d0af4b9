// Exchange: one rank's view of one running collective, used by the algorithms. Created on the rank's thread and used
// only there. An algorithm prepares data for other ranks, meets them, and reads the data that they prepared:
//
//   std::memcpy(x.slot(x.rank()), x.in(), bytes);   // own data, before the meeting
//   x.meet();                                       // throws CommError
//   sum(dtype, slots of all ranks, ...);            // data of all ranks, after it
#pragma once

#include <span>
#include <utility>
#include <vector>

#include "collectives/host/rank_memory.h"

namespace shoal::collectives::host {

/// Data that a rank keeps between calls, so that calls do not allocate.
struct RankScratch {
  explicit RankScratch(std::vector<RankMemory*> blocks)
      : memory(std::move(blocks)), sources(memory.size()), targets(memory.size()) {}

  const std::vector<RankMemory*> memory;  ///< memory of all ranks
  std::vector<const std::byte*> sources;
  std::vector<std::byte*> targets;
  uint32_t calls = 0;  ///< number of calls so far; the same on every rank
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
  /// Whether `count` elements fit into a slot.
  bool fits_slot(int64_t count) const { return bytes(count) <= kSlotBytes; }

  /// Waits for all ranks. The first meeting of a call also checks that all ranks queued the same collective.
  /// Throws CommError.
  void meet();

  /// The staging slot of `rank`. This rank writes the slot before the first meeting; all ranks read it afterwards.
  std::byte* slot(int rank) const { return scratch_.memory[rank]->slots[parity_].data(); }
  /// Input of another rank's call; valid between the first and the last meeting.
  const std::byte* in_of(int rank) const { return post(rank).in; }

  // The slots, inputs or outputs of all ranks in rank order. The span is valid until the next call of one of these
  // three functions.
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
  const uint32_t parity_;  ///< parity of the call number
  bool have_met_ = false;
};

/// memcpy that accepts null pointers with size 0 and does nothing if `to` is `from`.
void copy_bytes(std::byte* to, const std::byte* from, size_t size);

}  // namespace shoal::collectives::host
