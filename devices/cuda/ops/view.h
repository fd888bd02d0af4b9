// A tensor in the form that kernels receive by value. Strides are in bytes, like the strides of Tensor.
#pragma once

#include "devices/cuda/kernels/platform.h"
#include "graph/tensor.h"

namespace shoal::cuda {

/// Returns a / b, rounded up.
constexpr int64_t divided_up(int64_t a, int64_t b) {
  return (a + b - 1) / b;
}

struct View {
  std::byte* data = nullptr;
  int64_t shape[4] = {1, 1, 1, 1};
  int64_t strides[4] = {0, 0, 0, 0};
};

inline View view_of(const Tensor& tensor) {
  View view{tensor.data, {}, {}};
  for (int i = 0; i < kMaxDims; ++i) {
    view.shape[i] = tensor.shape[i];
    view.strides[i] = static_cast<int64_t>(tensor.strides[i]);
  }
  return view;
}

/// Whether the tensor is f32, f16 or bf16, with any strides.
inline bool is_float(const Tensor* tensor) {
  return tensor && traits(tensor->dtype).is_float;
}
/// Whether two tensors share memory. A kernel that runs several nodes in one launch needs this check.
inline bool overlap(const Tensor& a, const Tensor& b) {
  return a.data < b.data + b.span_bytes() && b.data < a.data + a.span_bytes();
}
/// True if no queued work writes the tensor. A kernel may read such a tensor before wait_for_previous().
inline bool is_constant(const Tensor& tensor) {
  return tensor.storage()->role == Role::kWeight;
}

/// Returns the address of row (i1, i2, i3).
__host__ __device__ inline std::byte* row_at(const View& view, int64_t i1, int64_t i2, int64_t i3) {
  return view.data + i1 * view.strides[1] + i2 * view.strides[2] + i3 * view.strides[3];
}
/// Returns the address of row (i1, i2, i3). If the tensor's length on an axis is 1, the index on this axis is ignored.
__host__ __device__ inline std::byte* broadcast_row_at(const View& view, int64_t i1, int64_t i2, int64_t i3) {
  return row_at(view, view.shape[1] == 1 ? 0 : i1, view.shape[2] == 1 ? 0 : i2, view.shape[3] == 1 ? 0 : i3);
}

}  // namespace shoal::cuda
