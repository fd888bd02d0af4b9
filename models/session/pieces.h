// Pieces: the parts of a tensor that a thread loads at a time.
#pragma once

#include <cstddef>
#include <vector>

#include "graph/tensor.h"
#include "models/gguf/gguf.h"

namespace shoal::models {

/// Rows that a device may want to get at once because it keeps their blocks side by side.
inline constexpr int64_t kRowGroup = 16;

/// Some bytes of one tensor.
struct Piece {
  Tensor* tensor = nullptr;
  const GgufTensor* source = nullptr;
  size_t offset = 0;  ///< of the file's tensor
  size_t bytes = 0;
};

/// Appends the pieces of a tensor, in order: about a megabyte each, of whole groups of rows of a matrix or of whole
/// matrices. Example: 512 rows of 4352 bytes are 2 pieces of 240 rows and one of 32.
void cut(Tensor& tensor, const GgufTensor& source, std::vector<Piece>& pieces);

}  // namespace shoal::models
