// all_gather, all_to_all and broadcast. Each step copies one piece of every row (host/rows.h) through the slots.
// Leaders send the ranges of these pieces that other nodes need. In each step, a rank copies the ranges that it needs
// from the pieces of the other ranks.
#include <algorithm>

#include "collectives/host/exchange.h"
#include "collectives/host/rows.h"
#include "collectives/mpi/algorithms.h"

namespace shoal::collectives::mpi {
namespace {

using host::common;
using host::copy_bytes;
using host::Stretch;

int64_t row_length(const Round& x, int from) {
  return host::row_length(x.call(), x.ranks(), from);
}

Stretch needed(const Round& x, int from, int to) {
  return host::needed(x.call(), x.ranks(), from, to);
}

Stretch piece_of_rows(const Round& x, int64_t step) {
  return {step * x.per_slot(), (step + 1) * x.per_slot()};
}

/// The address in this rank's output for element `index` of the row of rank `from`.
std::byte* out_for(const Round& x, int from, int64_t index) {
  return x.out() +
         x.bytes(host::place_of(x.call(), x.ranks(), from, x.rank()) + index - needed(x, from, x.rank()).begin);
}

/// Calls use() for each range that a node needs from a row's piece. Merges adjacent ranges first.
template <class F>
void for_each_stretch(const Round& x, int64_t step, int from, int node, F use) {
  Stretch open;
  for (const int to : x.on(node)) {
    const Stretch next = common(needed(x, from, to), piece_of_rows(x, step));
    if (next.is_empty()) continue;
    if (!open.is_empty() && next.begin <= open.end) {
      open.end = std::max(open.end, next.end);
      continue;
    }
    if (!open.is_empty()) use(open);
    open = next;
  }
  if (!open.is_empty()) use(open);
}

void exchange_pieces(Round& x, int64_t step) {
  const int64_t first = piece_of_rows(x, step).begin;
  std::vector<Passage>& passages = x.passages();
  const auto add = [&](bool sends, int node, int from, std::byte* (*place)(const Round&, int, int64_t)) {
    for_each_stretch(x, step, from, sends ? node : x.node(), [&](Stretch part) {
      std::byte* const data =
          x.is_alone() ? place(x, from, part.begin) : x.slot(from, step) + x.bytes(part.begin - first);
      passages.push_back({sends, node, data, x.bytes(part.size())});
    });
  };
  const auto in_at = [](const Round& y, int, int64_t index) { return y.in() + y.bytes(index); };
  for (int node = 0; node < x.nodes(); ++node) {
    if (node == x.node()) continue;
    for (const int from : x.on(x.node())) add(true, node, from, in_at);
    for (const int from : x.on(node)) add(false, node, from, out_for);
  }
  x.exchange(passages);
}

void take_pieces(Round& x, int64_t step) {
  const Stretch piece = piece_of_rows(x, step);
  for (int from = 0; from < x.ranks(); ++from) {
    const Stretch part = common(needed(x, from, x.rank()), piece);
    if (part.is_empty()) continue;
    if (from == x.rank()) {
      copy_bytes(out_for(x, from, part.begin), x.in() + x.bytes(part.begin), x.bytes(part.size()));
    } else if (!x.is_alone()) {
      copy_bytes(out_for(x, from, part.begin), x.slot(from, step) + x.bytes(part.begin - piece.begin),
                 x.bytes(part.size()));
    }
  }
}

void move_rows(Round& x) {
  const int64_t longest = host::longest_row(x.call(), x.ranks());
  const int64_t steps = std::max<int64_t>((longest + x.per_slot() - 1) / x.per_slot(), 1);
  const Stretch own{0, row_length(x, x.rank())};
  for (int64_t step = 0; step < steps; ++step) {
    const Stretch mine = common(own, piece_of_rows(x, step));
    if (!x.is_alone() && !mine.is_empty()) {
      copy_bytes(x.slot(x.rank(), step), x.in() + x.bytes(mine.begin), x.bytes(mine.size()));
    }
    x.meet();
    if (x.nodes() > 1) {
      if (x.leads()) exchange_pieces(x, step);
      x.meet_after_leader();
    }
    take_pieces(x, step);
  }
  x.end(steps);
}

}  // namespace

void all_gather(Round& x) {
  move_rows(x);
}

void all_to_all(Round& x) {
  move_rows(x);
}

void broadcast(Round& x) {
  move_rows(x);
}

}  // namespace shoal::collectives::mpi
