// Positions of tokens for ops with a state (causal_conv, gated_delta). A token with a negative position is padding. The
// token with position 0 is the first token of a sequence.
#pragma once

#include "devices/cuda/kernels/memory.h"
#include "devices/cuda/ops/view.h"

namespace shoal::cuda {

struct StatePositions {
  const std::byte* positions;
  int64_t stride;

  __device__ int32_t position(int64_t token) const { return load_as<int32_t>(positions + token * stride); }
  __device__ bool is_padding(int64_t token) const { return position(token) < 0; }
  __device__ bool begins(int64_t token) const { return position(token) == 0; }
};

inline StatePositions state_positions_of(const Tensor& positions) {
  return {positions.data, static_cast<int64_t>(positions.strides[0])};
}

}  // namespace shoal::cuda
