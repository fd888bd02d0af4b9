// Visits the bytes of a tensor with arbitrary strides, in the order of a contiguous tensor of the same shape.
// Implementations of buffers use this header to turn "bytes [offset, offset + size) of the tensor" into addresses. A
// piece is a range of bytes that is contiguous in memory.
//
// Example: x f32 [3, 2] permuted to [2, 3] has strides {12, 4}. Its bytes [4, 12) are the elements (1, 0) and (0, 1).
// These are two pieces of 4 bytes, at byte offsets 12 and 4 from the tensor's first element.
#pragma once

#include <algorithm>
#include <cstddef>

#include "graph/tensor.h"

namespace shoal {

/// Number of bytes from the tensor's first element to piece number `piece`. With `per_row`, a piece is a row. Otherwise
/// a piece is a block.
inline size_t piece_offset(const Tensor& tensor, size_t piece, bool per_row) {
  const auto blocks = static_cast<size_t>(tensor.shape[0] / traits(tensor.dtype).block_elems);
  size_t offset = 0;
  if (!per_row) {
    offset = piece % blocks * tensor.strides[0];
    piece /= blocks;
  }
  for (int axis = 1; axis < kMaxDims; ++axis) {
    const auto length = static_cast<size_t>(tensor.shape[axis]);
    offset += piece % length * tensor.strides[axis];
    piece /= length;
  }
  return offset;
}

/// Calls piece(tensor_offset, done, length) for each contiguous piece of [offset, offset + size), in order.
/// `tensor_offset` counts bytes from the tensor's first element. `done` counts bytes from `offset`. The range must be
/// valid.
template <class Piece>
void for_each_piece(const Tensor& tensor, size_t offset, size_t size, Piece&& piece) {
  if (size == 0) return;
  if (tensor.is_contiguous()) {
    piece(offset, size_t{0}, size);
    return;
  }
  const bool per_row = tensor.is_row_contiguous();
  const DTypeTraits& type = traits(tensor.dtype);
  const size_t bytes =
      per_row ? static_cast<size_t>(tensor.shape[0] / type.block_elems) * type.block_bytes : type.block_bytes;
  for (size_t done = 0; done < size;) {
    const size_t inside = (offset + done) % bytes;
    const size_t length = std::min(bytes - inside, size - done);
    piece(piece_offset(tensor, (offset + done) / bytes, per_row) + inside, done, length);
    done += length;
  }
}

}  // namespace shoal
