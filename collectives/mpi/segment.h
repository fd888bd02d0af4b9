// Segment: the memory that all processes of a node share for one communicator. The node's ranks meet and exchange data
// in this memory; the leader also stores data from other nodes in this memory. All data exist twice, for even and odd
// steps. All ranks of the node meet in each step. A rank may therefore overwrite the data of step s in step s + 2.
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

/// Size in bytes of a slot. One step transfers a piece of at most this size. With smaller slots, ranks would meet more
/// often. Meetings are expensive if other programs use the cores. Larger slots would not fit into the caches.
inline constexpr size_t kSlotBytes = 256 * 1024;

class Segment {
 public:
  struct Head {
    host::RendezvousState meeting;
    /// 1 after a rank has detected a failure; this rank reports the failure to all processes.
    alignas(host::kCacheLine) std::atomic<uint32_t> speaks{0};
  };

  /// All processes must call the constructor.
  Segment(const Seating& seating, ProcessGroup& group);
  /// Size in bytes of the segment on the node of `rank`, divided by the number of ranks on this node.
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
  /// Offsets in the segment.
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
