// Positions of ops with a state (causal_conv, gated_delta): below 0 padding, 0 the first token of a text.
#pragma once

#include "devices/cuda/kernels/memory.h"
#include "devices/cuda/ops/view.h"

namespace shoal::cuda {

struct Texts {
  const std::byte* positions;
  int64_t stride;

  __device__ int32_t position(int64_t token) const { return load_as<int32_t>(positions + token * stride); }
  __device__ bool is_padding(int64_t token) const { return position(token) < 0; }
  __device__ bool begins(int64_t token) const { return position(token) == 0; }
};

inline Texts texts_of(const Tensor& positions) {
  return {positions.data, static_cast<int64_t>(positions.strides[0])};
}

}  // namespace shoal::cuda
