#include "meta/plan/local_pieces.h"

#include <algorithm>

namespace shoal::meta {

Tensor* as_contiguous(Graph& g, Tensor* x) {
  return x->is_contiguous() ? x : contiguous(g, x);
}

Tensor* flatten(Graph& g, Tensor* x) {
  return reshape(g, as_contiguous(g, x), {x->elements(), 1, 1, 1});
}

Tensor* join(Graph& g, std::vector<Tensor*> parts, int axis) {
  std::vector<Tensor*> filled;
  for (Tensor* part : parts) {
    if (!part->empty()) filled.push_back(part);
  }
  if (filled.empty()) filled = std::move(parts);
  return filled.size() == 1 ? filled.front() : concat(g, std::move(filled), axis);
}

Tensor* take(Graph& g, Tensor* x, int axis, const Pieces& pieces) {
  Pieces merged;
  for (const Piece& piece : pieces) {
    if (!merged.empty() && merged.back().begin + merged.back().length == piece.begin) {
      merged.back().length += piece.length;
    } else {
      merged.push_back(piece);
    }
  }
  if (merged.empty()) merged.push_back({0, 0});
  if (merged.size() == 1 && merged[0].length == x->shape[axis]) return x;
  std::vector<Tensor*> parts;
  for (const Piece& piece : merged) parts.push_back(slice(g, x, {axis, piece.begin, piece.length}));
  return join(g, std::move(parts), axis);
}

Pieces global_pieces(const Partition& partition, int device) {
  Pieces pieces;
  for (const OwnedRun& run : partition.owned_by(device)) pieces.push_back({run.begin, run.length});
  return pieces;
}

Pieces local_pieces(const Partition& held, const Partition& wanted, int device) {
  Pieces pieces;
  const auto mine = held.owned_by(device);
  auto first = mine.begin();
  for (const OwnedRun& want : wanted.owned_by(device)) {
    while (first != mine.end() && first->begin + first->length <= want.begin) ++first;
    for (auto it = first; it != mine.end() && it->begin < want.begin + want.length; ++it) {
      const OwnedRun& have = *it;
      const int64_t begin = std::max(want.begin, have.begin);
      const int64_t end = std::min(want.begin + want.length, have.begin + have.length);
      if (begin < end) pieces.push_back({have.local_begin + begin - have.begin, end - begin});
    }
  }
  return pieces;
}

}  // namespace shoal::meta
