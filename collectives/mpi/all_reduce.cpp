// all_reduce. On one node, every rank stages a small message and sums all staged data (one meeting). A larger message
// is divided into pieces: every rank sums one chunk of each piece and copies the sums of the other ranks. A piece needs
// two meetings; the second meeting is also the first meeting of the next piece. With several nodes, each node first
// sums the data of its ranks. The leaders then exchange these node sums, and every rank adds the node sums in node
// order. With more than two nodes, each leader computes only a part of a large total sum. Each leader then sends and
// receives fewer bytes than with whole node sums.
#include <algorithm>

#include "collectives/host/exchange.h"
#include "collectives/host/sum.h"
#include "collectives/mpi/algorithms.h"

namespace shoal::collectives::mpi {
namespace {

using host::copy_bytes;
using host::sum;

/// For messages of at most this size, a second meeting costs more than summing the whole message on every rank.
constexpr size_t kOneShotBytes = 32 * 1024;
/// If there are more than two nodes, node sums of more than this size are divided among the leaders. The division needs
/// one more message, which costs less time than the division saves.
constexpr size_t kDividedBytes = 32 * 1024;

/// Piece number `index` of the message: elements [first, first + count).
struct Piece {
  int64_t index, first, count;
};

struct Range {
  int64_t first, count;
};

Piece piece_of(const Round& x, int64_t index) {
  const int64_t first = index * x.per_slot();
  return {index, first, std::min(x.per_slot(), x.call().count - first)};
}

int64_t pieces_of(const Round& x) {
  return std::max<int64_t>((x.call().count + x.per_slot() - 1) / x.per_slot(), 1);
}

Range chunk_of(const Round& x, const Piece& piece, int part, int parts) {
  const int64_t begin = host::chunk_begin(x.dtype(), piece.count, part, parts);
  return {begin, host::chunk_begin(x.dtype(), piece.count, part + 1, parts) - begin};
}

/// in_of: the rank's input for a piece. out_of: the address of the piece in the rank's output.
const std::byte* in_of(const Round& x, const Piece& piece) {
  return x.in() + x.bytes(piece.first);
}
std::byte* out_of(const Round& x, const Piece& piece) {
  return x.out() + x.bytes(piece.first);
}

/// Copies the rank's input to its slot. The copy omits the range `without`, because only the rank itself reads this
/// range.
void stage(Round& x, const Piece& piece, Range without = {0, 0}) {
  std::byte* const slot = x.slot(x.rank(), piece.index);
  const std::byte* const in = in_of(x, piece);
  const size_t begin = x.bytes(without.first), end = x.bytes(without.first + without.count);
  if (begin > 0) copy_bytes(slot, in, begin);
  if (end < x.bytes(piece.count)) copy_bytes(slot + end, in + end, x.bytes(piece.count) - end);
}

/// Pointers to the addends of all ranks of the node. Other ranks' addends are in their slots; the rank's own addend is
/// in its input.
std::span<const std::byte* const> addends(Round& x, const Piece& piece) {
  const auto sources = x.sources(x.seats());
  for (int seat = 0; seat < x.seats(); ++seat) {
    sources[static_cast<size_t>(seat)] =
        seat == x.seat() ? in_of(x, piece) : x.slot(x.on(x.node())[static_cast<size_t>(seat)], piece.index);
  }
  return sources;
}

void one_shot(Round& x) {
  const Piece all{0, 0, x.call().count};
  stage(x, all);
  x.meet();
  std::byte* const out = x.out();
  sum(x.dtype(), addends(x, all), 0, all.count, {&out, 1}, 0);
  x.end(1);
}

void two_shot(Round& x) {
  const int64_t pieces = pieces_of(x);
  const auto own_chunk = [&x](const Piece& piece) { return chunk_of(x, piece, x.seat(), x.seats()); };
  stage(x, piece_of(x, 0), own_chunk(piece_of(x, 0)));
  x.meet();
  for (int64_t index = 0; index < pieces; ++index) {
    const Piece piece = piece_of(x, index);
    const Range own = own_chunk(piece);
    std::byte *const result = x.result(index), *const out = out_of(x, piece);
    std::byte* const outs[] = {result, out};
    sum(x.dtype(), addends(x, piece), own.first, own.count, outs, own.first);
    if (index + 1 < pieces) stage(x, piece_of(x, index + 1), own_chunk(piece_of(x, index + 1)));
    x.meet();
    const size_t begin = x.bytes(own.first), end = x.bytes(own.first + own.count);
    copy_bytes(out, result, begin);
    copy_bytes(out + end, result + end, x.bytes(piece.count) - end);
  }
  x.end(pieces);
}

bool is_divided(const Round& x, const Piece& piece) {
  return x.nodes() > 2 && x.bytes(piece.count) > kDividedBytes;
}

/// Pointers to the sums of all nodes. The sum of this node is at `own`. The sums of all other nodes were received from
/// their leaders.
std::span<const std::byte* const> sums(Round& x, const Piece& piece, const std::byte* own) {
  const auto sources = x.sources(x.nodes());
  for (int node = 0; node < x.nodes(); ++node) {
    sources[static_cast<size_t>(node)] = node == x.node() ? own : x.sum_of(node, piece.index);
  }
  return sources;
}

// Each node computes one part of the total sum. With 3 nodes, node 1 receives the middle third of the other nodes'
// sums, adds the middle third of its own sum, and sends the result to both other nodes.
void exchange_divided(Round& x, const Piece& piece, std::byte* own) {
  const auto chunk = [&](int node) { return chunk_of(x, piece, node, x.nodes()); };
  const Range mine = chunk(x.node());
  std::byte* const result = x.result(piece.index);
  std::vector<Passage>& addends = x.passages();
  for (int node = 0; node < x.nodes(); ++node) {
    if (node == x.node()) continue;
    addends.push_back({true, node, own + x.bytes(chunk(node).first), x.bytes(chunk(node).count)});
    addends.push_back({false, node, x.sum_of(node, piece.index) + x.bytes(mine.first), x.bytes(mine.count)});
  }
  x.exchange(addends);
  sum(x.dtype(), sums(x, piece, own), mine.first, mine.count, {&result, 1}, mine.first);
  std::vector<Passage>& results = x.passages();
  for (int node = 0; node < x.nodes(); ++node) {
    if (node == x.node()) continue;
    results.push_back({true, node, result + x.bytes(mine.first), x.bytes(mine.count)});
    results.push_back({false, node, result + x.bytes(chunk(node).first), x.bytes(chunk(node).count)});
  }
  x.exchange(results);
}

void exchange_directly(Round& x, const Piece& piece, std::byte* own) {
  std::vector<Passage>& passages = x.passages();
  for (int node = 0; node < x.nodes(); ++node) {
    if (node == x.node()) continue;
    passages.push_back({true, node, own, x.bytes(piece.count)});
    passages.push_back({false, node, x.sum_of(node, piece.index), x.bytes(piece.count)});
  }
  x.exchange(passages);
}

/// Sums the inputs of all ranks of the node. If the message is small, the leader computes the sum alone; otherwise all
/// ranks of the node take part.
void sum_node(Round& x, const Piece& piece, std::byte* own) {
  const bool is_small = x.bytes(x.call().count) <= kOneShotBytes;
  if (is_small && !x.leads()) return;
  const Range chunk = is_small ? Range{0, piece.count} : chunk_of(x, piece, x.seat(), x.seats());
  sum(x.dtype(), addends(x, piece), chunk.first, chunk.count, {&own, 1}, chunk.first);
}

void among_nodes(Round& x) {
  const int64_t pieces = pieces_of(x);
  const bool is_small = x.bytes(x.call().count) <= kOneShotBytes;
  if (!x.is_alone() && !(is_small && x.leads())) stage(x, piece_of(x, 0));
  x.meet();
  for (int64_t index = 0; index < pieces; ++index) {
    const Piece piece = piece_of(x, index);
    std::byte* const own = x.is_alone() ? x.in() + x.bytes(piece.first) : x.sum_of(x.node(), index);
    if (!x.is_alone()) sum_node(x, piece, own);
    if (!is_small) x.meet();
    if (x.leads()) is_divided(x, piece) ? exchange_divided(x, piece, own) : exchange_directly(x, piece, own);
    if (!x.is_alone() && index + 1 < pieces) stage(x, piece_of(x, index + 1));
    x.meet_after_leader();
    std::byte* const out = out_of(x, piece);
    if (is_divided(x, piece)) {
      copy_bytes(out, x.result(index), x.bytes(piece.count));
    } else {
      sum(x.dtype(), sums(x, piece, own), 0, piece.count, {&out, 1}, 0);
    }
  }
  x.end(pieces);
}

}  // namespace

void all_reduce(Round& x) {
  if (x.nodes() > 1) return among_nodes(x);
  if (x.bytes(x.call().count) <= kOneShotBytes) return one_shot(x);
  two_shot(x);
}

}  // namespace shoal::collectives::mpi
