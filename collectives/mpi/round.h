// A Round gives one rank access to one running collective. The algorithms receive a Round. A Round is created and used
// only on the rank's thread. A call has one or several steps. Each step transfers a piece of the message that fits into
// a slot:
//
//   copy(x.slot(x.rank(), i), x.in() + ..., bytes);        // own data, before the meeting
//   x.meet();                                              // throws CommError
//   if (x.leads()) x.exchange(passages);                   // with the other nodes
//   x.meet_after_leader();
//   copy(x.out() + ..., x.slot(other, i), bytes);          // data of other ranks, after the second meeting
#pragma once

#include <span>
#include <vector>

#include "collectives/host/rendezvous.h"
#include "collectives/mpi/leaders.h"
#include "collectives/mpi/segment.h"

namespace shoal::collectives::mpi {

/// Data shared by the ranks of one process.
struct Node {
  const Seating& seating;
  const Segment& segment;
  host::Rendezvous& rendezvous;
  Leaders& leaders;
  std::chrono::nanoseconds patience;  ///< longest wait for the leader, which may itself wait for other nodes
  Leaders::Fail fail;
};

/// Buffers that a rank reuses in all calls, so that calls do not allocate.
struct RankScratch {
  explicit RankScratch(const Seating& seating) : sources(static_cast<size_t>(seating.ranks())) {
    passages.reserve(2 * sources.size() * static_cast<size_t>(seating.nodes()));
  }
  uint32_t steps = 0;  ///< number of steps so far; equal on all ranks
  std::vector<const std::byte*> sources;
  std::vector<Passage> passages;
};

class Round {
 public:
  Round(Node& node, RankScratch& scratch, int rank, const Call& call);

  int rank() const { return rank_; }
  int ranks() const { return node_.seating.ranks(); }
  int seat() const { return node_.seating.seat_of(rank_); }
  int node() const { return node_.seating.own_node; }
  int nodes() const { return node_.seating.nodes(); }
  int node_of(int rank) const { return node_.seating.node_of(rank); }
  /// The ranks of a node.
  const std::vector<int>& on(int node) const { return node_.seating.on(node); }
  int seats() const { return static_cast<int>(on(node()).size()); }
  /// Whether this rank is the only rank of its node. If so, meetings do nothing, and messages use the rank's memory
  /// directly.
  bool is_alone() const { return seats() == 1; }
  bool leads() const { return seat() == 0; }

  const Call& call() const { return call_; }
  DType dtype() const { return call_.dtype; }
  std::byte* in() const { return static_cast<std::byte*>(const_cast<void*>(call_.in)); }
  std::byte* out() const { return static_cast<std::byte*>(call_.out); }
  size_t bytes(int64_t count) const { return bytes_for(call_.dtype, count); }
  /// Number of elements that fit into a slot, rounded down to whole blocks of the dtype.
  int64_t per_slot() const;

  /// Waits for all ranks of the node. The first meeting of a call also checks that the ranks queued the same
  /// collective.
  void meet();
  /// Waits again for all ranks of the node. The time-out is longer than in meet(), because the leader may still be
  /// exchanging messages.
  void meet_after_leader();
  /// Exchanges data with other nodes. Called only by the leader. The first exchange of a call also checks that the
  /// nodes queued the same collective.
  void exchange(std::span<const Passage> passages);
  /// Ends the call. `steps`: number of steps in the call.
  void end(int64_t steps) { scratch_.steps += static_cast<uint32_t>(steps); }

  // Addresses in the node's shared memory for step `step` of the call.
  std::byte* slot(int rank, int64_t step) const { return node_.segment.slot(rank, number(step)); }
  std::byte* sum_of(int node, int64_t step) const { return node_.segment.sum_of(node, number(step)); }
  std::byte* result(int64_t step) const { return node_.segment.result(number(step)); }
  /// Scratch space: one pointer per rank (sources), and the passages of one exchange. The next call of the same
  /// function overwrites the returned space.
  std::span<const std::byte*> sources(int count) { return {scratch_.sources.data(), static_cast<size_t>(count)}; }
  std::vector<Passage>& passages() { return scratch_.passages.clear(), scratch_.passages; }

 private:
  uint32_t number(int64_t step) const { return scratch_.steps + static_cast<uint32_t>(step); }
  void check_agreement();

  Node& node_;
  RankScratch& scratch_;
  const int rank_;
  const Call& call_;
  bool have_met_ = false, has_exchanged_ = false;
};

}  // namespace shoal::collectives::mpi
