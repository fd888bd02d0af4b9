// reduce_scatter. Each step processes one piece of the message. A piece contains the same fraction of every rank's
// part, so that all ranks sum in every step. A slot contains the fractions of all ranks one after another. On one node,
// every rank sums the fraction of its own part. With several nodes, the ranks of each node first sum all fractions;
// each rank sums one chunk of the slot. Each leader then sends these node sums to the nodes that need them.
//
//   counts 2 4 2, 7 elements per slot: two steps, each with fractions of 1, 2 and 1 elements
#include <algorithm>
#include <numeric>

#include "collectives/host/exchange.h"
#include "collectives/host/sum.h"
#include "collectives/mpi/algorithms.h"

namespace shoal::collectives::mpi {
namespace {

/// The range of one rank's part that a piece contains. `begin`: index of the range's first element in the whole
/// message. `place`: index of the range's first element in the piece. `count`: number of elements in the range.
struct Fraction {
  int64_t begin, place, count;
};

class Pieces {
 public:
  explicit Pieces(const Round& x) : counts_(x.call().counts) {
    const int64_t total = std::accumulate(counts_.begin(), counts_.end(), int64_t{0});
    const int64_t most = x.per_slot() - x.ranks();  // rounding can make each fraction one element longer
    count_ = std::max<int64_t>((total + most - 1) / most, 1);
  }
  int64_t count() const { return count_; }
  /// Calls use(rank, fraction) for each rank's part. Returns the number of elements in the piece.
  template <class F>
  int64_t for_each(int64_t index, F use) const {
    int64_t begin = 0, place = 0;
    for (size_t rank = 0; rank < counts_.size(); begin += counts_[rank++]) {
      const int64_t first = counts_[rank] * index / count_, end = counts_[rank] * (index + 1) / count_;
      use(static_cast<int>(rank), Fraction{begin + first, place, end - first});
      place += end - first;
    }
    return place;
  }
  Fraction of(int64_t index, int wanted) const {
    Fraction found{};
    for_each(index, [&](int rank, const Fraction& fraction) {
      if (rank == wanted) found = fraction;
    });
    return found;
  }
  /// Number of elements of the rank's result that are in the pieces before piece `index`.
  int64_t done(int64_t index, int rank) const { return counts_[static_cast<size_t>(rank)] * index / count_; }

 private:
  std::span<const int64_t> counts_;
  int64_t count_;
};

void stage_parts(Round& x, const Pieces& pieces, int64_t index) {
  if (x.is_alone()) return;
  std::byte* const slot = x.slot(x.rank(), index);
  pieces.for_each(index, [&](int, const Fraction& part) {
    host::copy_bytes(slot + x.bytes(part.place), x.in() + x.bytes(part.begin), x.bytes(part.count));
  });
}

/// Pointers to element `place` of the data that each rank of the node has staged.
std::span<const std::byte* const> staged(Round& x, int64_t index, int64_t place) {
  const auto sources = x.sources(x.seats());
  for (int seat = 0; seat < x.seats(); ++seat) {
    sources[static_cast<size_t>(seat)] = x.slot(x.on(x.node())[static_cast<size_t>(seat)], index) + x.bytes(place);
  }
  return sources;
}

void sum_chunk_of_node(Round& x, int64_t index, int64_t size) {
  const int64_t begin = host::chunk_begin(x.dtype(), size, x.seat(), x.seats());
  const int64_t end = host::chunk_begin(x.dtype(), size, x.seat() + 1, x.seats());
  std::byte* const own = x.sum_of(x.node(), index);
  host::sum(x.dtype(), staged(x, index, 0), begin, end - begin, {&own, 1}, begin);
}

/// The address of this node's sum of one fraction.
std::byte* sum_of_own(const Round& x, int64_t index, const Fraction& part) {
  return x.is_alone() ? x.in() + x.bytes(part.begin) : x.sum_of(x.node(), index) + x.bytes(part.place);
}

void exchange_sums(Round& x, const Pieces& pieces, int64_t index) {
  std::vector<Passage>& passages = x.passages();
  pieces.for_each(index, [&](int rank, const Fraction& part) {
    const int target = x.node_of(rank);
    if (target != x.node()) {
      passages.push_back({true, target, sum_of_own(x, index, part), x.bytes(part.count)});
      return;
    }
    for (int node = 0; node < x.nodes(); ++node) {
      if (node == x.node()) continue;
      passages.push_back({false, node, x.sum_of(node, index) + x.bytes(part.place), x.bytes(part.count)});
    }
  });
  x.exchange(passages);
}

void sum_own_part(Round& x, const Pieces& pieces, int64_t index) {
  const Fraction part = pieces.of(index, x.rank());
  if (part.count == 0) return;
  std::byte* const out = x.out() + x.bytes(pieces.done(index, x.rank()));
  if (x.nodes() == 1) return host::sum(x.dtype(), staged(x, index, part.place), 0, part.count, {&out, 1}, 0);
  const auto sources = x.sources(x.nodes());
  for (int node = 0; node < x.nodes(); ++node) {
    sources[static_cast<size_t>(node)] =
        node == x.node() ? sum_of_own(x, index, part) : x.sum_of(node, index) + x.bytes(part.place);
  }
  host::sum(x.dtype(), sources, 0, part.count, {&out, 1}, 0);
}

}  // namespace

void reduce_scatter(Round& x) {
  const Pieces pieces(x);
  for (int64_t index = 0; index < pieces.count(); ++index) {
    stage_parts(x, pieces, index);
    x.meet();
    if (x.nodes() > 1) {
      const int64_t size = pieces.for_each(index, [](int, const Fraction&) {});
      if (!x.is_alone()) sum_chunk_of_node(x, index, size);
      x.meet();
      if (x.leads()) exchange_sums(x, pieces, index);
      x.meet_after_leader();
    }
    sum_own_part(x, pieces, index);
  }
  x.end(pieces.count());
}

}  // namespace shoal::collectives::mpi
