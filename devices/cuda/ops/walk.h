// walk() runs a function on the device for each item of a shape with up to four axes. One thread processes each item.
// An item is an element, a pack of 16 bytes, or another unit. strides[0] of an operand is the number of bytes from one
// item to the next item. The caller first calls join_axes(), which joins axes that are contiguous in all operands. So
// tensors without gaps become one long row.
//
//   int64_t shape[] = {64, 33, 3, 1};
//   Operand to = operand_of(node), from = broadcast_operand(x, node.shape);
//   join_axes(shape, {&to, &from});
//   walk(context, shape, AddOne{to, from});   // calls AddOne::operator()(Index) on the device
#pragma once

#include <algorithm>
#include <initializer_list>

#include "devices/cuda/kernels/platform.h"
#include "devices/cuda/op_kernel.h"
#include "graph/tensor.h"

namespace shoal::cuda {

struct Index {
  int64_t i0, i1, i2, i3;
};

/// Address and strides of a tensor. Strides are in bytes. If a stride is 0, all indices of that axis refer to the same
/// element.
struct Operand {
  std::byte* data = nullptr;
  int64_t strides[kMaxDims] = {0, 0, 0, 0};

  __device__ std::byte* at(const Index& i) const {
    return data + i.i0 * strides[0] + i.i1 * strides[1] + i.i2 * strides[2] + i.i3 * strides[3];
  }
};

inline Operand operand_of(const Tensor& tensor) {
  Operand operand{tensor.data, {}};
  for (int i = 0; i < kMaxDims; ++i) operand.strides[i] = static_cast<int64_t>(tensor.strides[i]);
  return operand;
}

/// Returns the operand for a walk() over `shape`. Axes of length 1 are broadcast.
inline Operand broadcast_operand(const Tensor& tensor, const Shape& shape) {
  Operand operand = operand_of(tensor);
  for (int i = 0; i < kMaxDims; ++i) {
    if (tensor.shape[i] == 1 && shape[i] != 1) operand.strides[i] = 0;
  }
  return operand;
}

/// Joins an axis with the next inner axis if no operand has a gap between the two axes. For operands without gaps, {64,
/// 33, 3, 1} becomes {6336, 1, 1, 1}.
inline void join_axes(Shape& shape, std::initializer_list<Operand*> operands) {
  int inner = 0;
  for (int outer = 1; outer < kMaxDims; ++outer) {
    if (shape[outer] == 1) continue;
    const bool first = shape[inner] == 1;
    const bool goes_on = std::all_of(operands.begin(), operands.end(), [&](const Operand* operand) {
      return operand->strides[outer] == operand->strides[inner] * shape[inner];
    });
    if (!first && !goes_on) ++inner;
    const bool joins = !first && goes_on;
    for (Operand* operand : operands) {
      if (!joins) operand->strides[inner] = operand->strides[outer];
    }
    shape[inner] = joins ? shape[inner] * shape[outer] : shape[outer];
    if (outer > inner) shape[outer] = 1;
  }
}

/// Whether one access along axis 0 can cover `count` elements of `bytes` bytes each. The result is true if axis 0 of
/// the operand has no gaps, and the byte length and the address of every row are multiples of the access size.
inline bool has_packs(const Operand& operand, const Shape& shape, int64_t bytes, int64_t count) {
  const int64_t size = bytes * count;
  if (operand.strides[0] != bytes || shape[0] % count != 0) return false;
  bool aligned = reinterpret_cast<uintptr_t>(operand.data) % size == 0;
  for (int i = 1; i < kMaxDims; ++i) aligned = aligned && (shape[i] == 1 || operand.strides[i] % size == 0);
  return aligned;
}

/// `n0` is the number of items along axis 0. `n1` and `n2` are the lengths of axes 1 and 2. `rows` is the number of
/// rows along axes 1 to 3.
struct WalkShape {
  int64_t n0, n1, n2, rows;
};

inline WalkShape walk_shape(const Shape& shape) {
  return {shape[0], shape[1], shape[2], shape[1] * shape[2] * shape[3]};
}

/// Returns the index of the first item of a row.
__device__ inline Index row_index(const WalkShape& shape, int64_t row) {
  if (row < shape.n1) return {0, row, 0, 0};
  const bool small = shape.rows <= 0x7fffffff;  // if true, the function uses 32-bit divisions, which are much faster
                                                // than 64-bit divisions
  const int64_t plane = small ? static_cast<uint32_t>(row) / static_cast<uint32_t>(shape.n1) : row / shape.n1;
  const int64_t i3 = small ? static_cast<uint32_t>(plane) / static_cast<uint32_t>(shape.n2) : plane / shape.n2;
  return {0, row - plane * shape.n1, plane - i3 * shape.n2, i3};
}

template <class F>
__global__ void walk_kernel(WalkShape shape, F f) {
  const int64_t row_step = static_cast<int64_t>(gridDim.x) * blockDim.y;
  const int64_t step = static_cast<int64_t>(gridDim.y) * blockDim.x;
  let_next_start();
  wait_for_previous();
  for (int64_t row = static_cast<int64_t>(blockIdx.x) * blockDim.y + threadIdx.y; row < shape.rows; row += row_step) {
    Index index = row_index(shape, row);
    index.i0 = static_cast<int64_t>(blockIdx.y) * blockDim.x + threadIdx.x;
#pragma unroll 1
    for (; index.i0 < shape.n0; index.i0 += step) f(index);
  }
}

/// Calls f(Index) for every index of the shape. If rows are short, one block processes several rows.
template <class F>
void walk(const LaunchContext& context, const Shape& shape, const F& f) {
  constexpr int64_t kThreads = 256, kBlocksPerProcessor = 32;
  const WalkShape items = walk_shape(shape);
  if (items.n0 == 0 || items.rows == 0) return;
  int64_t wide = kThreads;
  while (wide / 2 >= items.n0) wide /= 2;
  const int64_t high = kThreads / wide;
  const int64_t most = std::max(context.gpu.processors, 1) * kBlocksPerProcessor;
  const int64_t columns = std::min({(items.n0 + wide - 1) / wide, most, int64_t{65535}});
  const int64_t rows = std::min((items.rows + high - 1) / high, std::max<int64_t>(most / columns, 1));
  const dim3 grid(static_cast<unsigned>(rows), static_cast<unsigned>(columns));
  launch_early(context, walk_kernel<F>, grid, dim3(static_cast<unsigned>(wide), static_cast<unsigned>(high)), 0, items,
               f);
}

}  // namespace shoal::cuda
