#include "collectives/mpi/segment.h"

namespace shoal::collectives::mpi {
namespace {

constexpr size_t kPage = 4096;

size_t whole(size_t bytes, size_t unit) {
  return (bytes + unit - 1) / unit * unit;
}

}  // namespace

Segment::Places::Places(int count, int ranks, int nodes) : seat_count(count) {
  const auto several = [](int number, size_t bytes) { return static_cast<size_t>(number) * bytes; };
  seats = whole(sizeof(Head), host::kCacheLine);
  marks = seats + several(count, sizeof(host::Seat));
  slots = whole(marks + several(2 * count, sizeof(Mark)), kPage);
  sums = slots + several(2 * ranks, kSlotBytes);
  results = sums + several(nodes > 1 ? 2 * nodes : 0, kSlotBytes);
  end = results + 2 * kSlotBytes;
}

// Processes on a computer without ranks also get a segment, because they read failures from the segment.
Segment::Places Segment::places(int node, const Seating& seating) {
  if (node < 0) return {0, 0, 1};
  return {static_cast<int>(seating.on(node).size()), seating.ranks(), seating.nodes()};
}

Segment::Segment(const Seating& seating, ProcessGroup& group)
    : places_(places(seating.own_node, seating)), memory_(group.share(places_.end)) {}

size_t Segment::bytes_of(int rank, const Seating& seating) {
  if (seating.ranks() == 1) return 0;
  const int node = seating.node_of(rank);
  return whole(places(node, seating).end / seating.on(node).size(), kPage);
}

}  // namespace shoal::collectives::mpi
