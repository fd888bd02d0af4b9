// Pieces: the parts of a tensor that loading reads at a time, and how one gets from the file to where the tensor lies:
// straight into memory of the host, even where several devices have the rows of the piece, or through memory of
// the thread that loads it. Thread-safe for different pieces.
#pragma once

#include <cstddef>
#include <vector>

#include "models/gguf/gguf.h"

namespace shoal::models {

/// Rows that a device may want to get at once because it keeps their blocks side by side.
inline constexpr int64_t kRowGroup = 16;

/// Some bytes of one tensor.
struct Piece {
  Tensor* tensor = nullptr;
  const GgufTensor* source = nullptr;
  size_t offset = 0;
  size_t bytes = 0;
};

/// Appends the pieces of a tensor, in order: about a megabyte each, of whole groups of rows of a matrix or of whole
/// matrices. Example: 512 rows of 4352 bytes are 2 pieces of 240 rows and one of 32.
void cut(Tensor& tensor, const GgufTensor& source, std::vector<Piece>& pieces);

/// Does the tensor lie where the file is mapped?
bool is_mapped(const Tensor& tensor, const GgufTensor& source);

/// Reads one piece. `staging` is scratch memory of the calling thread, kept between calls.
void load_piece(const GgufFile& file, const Piece& piece, std::vector<std::byte>& staging);

}  // namespace shoal::models
