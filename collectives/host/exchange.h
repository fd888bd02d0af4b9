// An Exchange gives one rank access to one running collective. The algorithms receive an Exchange. An Exchange is
// created and used only on the rank's thread. An algorithm prepares data for other ranks, meets these ranks at a
// barrier, and reads their data:
//
//   std::memcpy(x.slot(x.rank()), x.in(), bytes);   // own data, before the meeting
//   x.meet();                                       // throws CommError
//   sum(dtype, slots of all ranks, ...);            // data of all ranks, after the meeting
#pragma once

#include <span>
#include <utility>
#include <vector>

#include "collectives/host/rank_memory.h"

namespace shoal::collectives::host {

/// Buffers that a rank reuses in all calls, so that calls do not allocate.
struct RankScratch {
  explicit RankScratch(std::vector<RankMemory*> blocks)
      : memory(std::move(blocks)), sources(memory.size()), targets(memory.size()) {}

  const std::vector<RankMemory*> memory;  ///< memory of all ranks
  std::vector<const std::byte*> sources;
  std::vector<std::byte*> targets;
  uint32_t calls = 0;  ///< number of calls so far; equal on all ranks
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

  /// The staging slot of `rank`. `rank` writes the slot before the first meeting; all ranks read the slot after this
  /// meeting.
  std::byte* slot(int rank) const { return scratch_.memory[rank]->slots[parity_].data(); }
  /// The input of another rank. The pointer is valid between the first and the last meeting.
  const std::byte* in_of(int rank) const { return post(rank).in; }

  // Pointers to the slots, inputs or outputs of all ranks in rank order. The span is valid until the next call of one
  // of these three functions.
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

/// Like memcpy, but accepts null pointers with size 0. Does nothing if `to` is equal to `from`.
void copy_bytes(std::byte* to, const std::byte* from, size_t size);

}  // namespace shoal::collectives::host
