// The positions of tokens, for ops with a state (causal_conv, gated_delta). A token with a negative position is
// padding. A token with position 0 is the first of a sequence.
#pragma once

#include "graph/tensor.h"

namespace shoal::cpu {

class SequencePositions {
 public:
  explicit SequencePositions(const Tensor& positions) : positions_(positions) {}
  int64_t count() const { return positions_.shape[0]; }
  bool is_padding(int64_t token) const { return at(token) < 0; }
  bool begins(int64_t token) const { return at(token) == 0; }

 private:
  int32_t at(int64_t token) const {
    return *reinterpret_cast<const int32_t*>(positions_.data + token * positions_.strides[0]);
  }

  const Tensor& positions_;
};

}  // namespace shoal::cpu
