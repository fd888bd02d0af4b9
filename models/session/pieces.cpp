#include "models/session/pieces.h"

#include <algorithm>

#include "meta/device/meta_buffer.h"
#include "meta/device/transfer.h"

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

/// Reads the piece straight to the devices that have its rows. False, and nothing done: some of it must be cut up, or
/// goes to several devices, or to one whose memory the host cannot write.
bool read_to_shards(const GgufFile& file, const Piece& piece) {
  const meta::Shards* shards = meta::find_shards(*piece.tensor);
  if (shards == nullptr || !shards->layout.is_split()) return false;
  struct Part {
    std::span<std::byte> to;
    size_t offset;
  };
  std::vector<Part> parts;
  size_t bytes = 0;
  for (size_t rank = 0; rank < shards->local.size(); ++rank) {
    const Tensor& local = *shards->local[rank];
    for (const meta::Rectangle& r :
         meta::rectangles(*shards, static_cast<int>(rank), piece.offset, piece.bytes, meta::Access::kWrite)) {
      if (r.local.rows != 1 || local.buffer == nullptr || !local.buffer->is_host()) return false;
      parts.push_back({{local.data + r.local.offset, r.local.row_bytes}, r.host_offset});
      bytes += r.local.row_bytes;
    }
  }
  if (bytes != piece.bytes) return false;  // what two devices have is better read once
  for (const Part& part : parts) file.read(*piece.source, piece.offset + part.offset, part.to);
  return true;
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

bool is_mapped(const Tensor& tensor, const GgufTensor& source) {
  return tensor.data == source.data;
}

void load_piece(const GgufFile& file, const Piece& piece, std::vector<std::byte>& staging) {
  Tensor& tensor = *piece.tensor;
  if (is_mapped(tensor, *piece.source)) {
    file.fetch(*piece.source, piece.offset, piece.bytes);
  } else if (tensor.buffer->is_host()) {
    file.read(*piece.source, piece.offset, {tensor.data + piece.offset, piece.bytes});
  } else if (!read_to_shards(file, piece)) {
    staging.resize(piece.bytes);
    file.read(*piece.source, piece.offset, staging);
    tensor_set(tensor, staging.data(), piece.offset, piece.bytes);
  }
}

}  // namespace shoal::models
