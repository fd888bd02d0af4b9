#include "models/session/pieces.h"

#include <algorithm>

namespace shoal::models {
namespace {

// What a thread reads at a time: small enough to be still in its cache when it is cut up.
constexpr size_t kPieceBytes = size_t{1} << 20;
// Groups of longer rows are cut anywhere.
constexpr size_t kLargestGroup = 4 * kPieceBytes;

/// Pieces of at most `step` bytes of [0, bytes).
void cut_evenly(const Piece& all, size_t step, std::vector<Piece>& pieces) {
  for (size_t done = 0; done < all.bytes; done += step) {
    pieces.push_back({all.tensor, all.source, all.offset + done, std::min(step, all.bytes - done)});
  }
}

}  // namespace

void cut(Tensor& tensor, const GgufTensor& source, std::vector<Piece>& pieces) {
  const Piece all{&tensor, &source, 0, source.bytes};
  const auto rows = static_cast<size_t>(source.shape[1]);
  const size_t matrices = static_cast<size_t>(source.shape[2]) * static_cast<size_t>(source.shape[3]);
  if (all.bytes <= kPieceBytes || rows * matrices == 0) return cut_evenly(all, kPieceBytes, pieces);
  const size_t matrix = all.bytes / matrices;
  if (matrix <= kPieceBytes) return cut_evenly(all, kPieceBytes / matrix * matrix, pieces);
  const size_t group = matrix / rows * kRowGroup;
  const size_t step = group <= kLargestGroup ? std::max<size_t>(1, kPieceBytes / group) * group : kPieceBytes;
  for (size_t i = 0; i < matrices; ++i) cut_evenly({&tensor, &source, i * matrix, matrix}, step, pieces);
}

}  // namespace shoal::models
