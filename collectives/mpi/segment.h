// Segment: the memory that all processes of a node share for one communicator. In it the node's ranks meet and leave
// for each other what they send; what ranks of other nodes send is put where these would have left it. Everything is
// there twice and used in turn, step after step: what is read in a step may be written again in the next but one,
// because each step has a meeting of all ranks of the node.
//
//   rendezvous, seats | marks: [seat][2] | slots: [rank of the mesh][2] | sums of nodes: [node][2] | results: [2]
#pragma once

#include <array>
#include <cstddef>

#include "collectives/host/call_mark.h"
#include "collectives/host/rendezvous.h"
#include "collectives/mpi/seating.h"
#include "processes/shared_memory.h"

namespace shoal::collectives::mpi {

/// What goes through the slots in one step; larger messages go in pieces. With smaller slots they meet more often,
/// which costs more where other programs are at the cores; larger ones leave the caches.
inline constexpr size_t kSlotBytes = 256 * 1024;

class Segment {
 public:
  struct Head {
    host::RendezvousState meeting;
    /// A rank has found why it fails, and tells all processes.
    alignas(host::kCacheLine) std::atomic<uint32_t> speaks{0};
  };

  /// Collective.
  Segment(const Seating& seating, ProcessGroup& group);
  /// The part of its node's segment that a rank counts as its own.
  static size_t bytes_of(int rank, const Seating& seating);

  Head& head() const { return *reinterpret_cast<Head*>(memory_.data()); }
  std::span<host::Seat> seats() const {
    return {at<host::Seat>(places_.seats), static_cast<size_t>(places_.seat_count)};
  }
  host::CallMark& mark(int seat, uint32_t step) const { return at<Mark>(places_.marks)[2 * seat + (step & 1)].mark; }
  std::byte* slot(int rank, uint32_t step) const { return block(places_.slots, rank, step); }
  std::byte* sum_of(int node, uint32_t step) const { return block(places_.sums, node, step); }
  std::byte* result(uint32_t step) const { return block(places_.results, 0, step); }

 private:
  struct alignas(host::kCacheLine) Mark {
    host::CallMark mark;
  };
  /// Offsets.
  struct Places {
    Places(int seats, int ranks, int nodes);
    int seat_count;
    size_t seats, marks, slots, sums, results, end;
  };

  template <class T>
  T* at(size_t offset) const {
    return reinterpret_cast<T*>(memory_.data() + offset);
  }
  std::byte* block(size_t first, int index, uint32_t step) const {
    return memory_.data() + first + (2 * static_cast<size_t>(index) + (step & 1)) * kSlotBytes;
  }
  static Places places(int node, const Seating& seating);

  const Places places_;
  const SharedMemory memory_;
};

}  // namespace shoal::collectives::mpi
