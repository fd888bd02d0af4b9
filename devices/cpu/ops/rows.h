// Access to the rows of strided tensors. row_at() returns the address of a row. load() returns a piece of a row as f32
// for any dtype. Kernels process pieces of at most kChunk elements. So conversions use a buffer on the stack, and the
// dtype is looked up only once per piece.
#pragma once

#include <algorithm>
#include <cstddef>
#include <cstdint>

#include "devices/cpu/op_kernel.h"
#include "graph/tensor.h"

namespace shoal::cpu {

/// Maximum number of elements per piece. This number is a multiple of every block size.
inline constexpr int64_t kChunk = 512;
/// Maximum number of elements per piece if nothing is converted. Such pieces need no buffer on the stack.
inline constexpr int64_t kLongChunk = 2048;

/// Indices of a row on axes 1, 2 and 3.
struct RowIndex {
  int64_t i1 = 0, i2 = 0, i3 = 0;
};

inline RowIndex row_index(const Shape& shape, int64_t row) {
  const int64_t i2 = row / shape[1];
  return {row % shape[1], i2 % shape[2], i2 / shape[2]};
}

/// Returns an element of an i32 or i64 tensor.
inline int64_t index_at(const Tensor& ids, int64_t i0, int64_t i1 = 0, int64_t i2 = 0) {
  const std::byte* at = ids.data + i0 * ids.strides[0] + i1 * ids.strides[1] + i2 * ids.strides[2];
  return ids.dtype == DType::kI64 ? *reinterpret_cast<const int64_t*>(at) : *reinterpret_cast<const int32_t*>(at);
}

inline std::byte* row_at(const Tensor& tensor, const RowIndex& row) {
  return tensor.data + row.i1 * tensor.strides[1] + row.i2 * tensor.strides[2] + row.i3 * tensor.strides[3];
}

/// Like row_at(), but axes of length 1 are broadcast: index 0 is used on these axes.
inline std::byte* broadcast_row_at(const Tensor& tensor, const RowIndex& row) {
  return row_at(tensor, {tensor.shape[1] == 1 ? 0 : row.i1, tensor.shape[2] == 1 ? 0 : row.i2,
                         tensor.shape[3] == 1 ? 0 : row.i3});
}

/// Whether rows are f32 without gaps, so that kernels use them in place. Code that allocates scratch for converted rows
/// must use this function. Tensor::is_row_contiguous() does not suffice, because it ignores the stride of rows with one
/// element.
inline bool is_direct(const Tensor& tensor) {
  return tensor.dtype == DType::kF32 && tensor.strides[0] == sizeof(float);
}

/// Converts n elements of a row, starting at element `begin`. Returns the converted elements in `scratch`.
const float* load_into(float* scratch, const Tensor& tensor, const std::byte* row, int64_t begin, int64_t n);

/// Like load_into(), but returns the row's own memory if is_direct() is true. `begin` must be at a block boundary.
inline const float* load(const Tensor& tensor, const std::byte* row, int64_t begin, int64_t n, float* scratch) {
  if (is_direct(tensor)) return reinterpret_cast<const float*>(row) + begin;
  return load_into(scratch, tensor, row, begin, n);
}

/// Returns the memory in which a kernel computes a result row from element `begin` on. If the row is f32, the result is
/// the row's own memory. Otherwise the result is `scratch`. Result rows have no gaps.
inline float* target(const Tensor& node, std::byte* row, int64_t begin, float* scratch) {
  return node.dtype == DType::kF32 ? reinterpret_cast<float*>(row) + begin : scratch;
}

/// Converts values that were computed in target(), and stores them in the row. Does nothing if the row is f32.
void store(const Tensor& node, std::byte* row, int64_t begin, int64_t n, const float* values);

/// Like DTypeTraits::from_f32, but vectorised for common dtypes. `to` receives n converted values.
void convert(DType dtype, const float* values, void* to, int64_t n);

/// Copies elements [begin, begin + n) of a row without conversion. There are no gaps between the elements in `to`.
void copy_elements(const Tensor& tensor, const std::byte* row, int64_t begin, int64_t n, std::byte* to);

/// Calls f(RowIndex, begin, n) for each piece that belongs to this part. `shape` is the shape of the tensor. Rows are
/// cut into pieces of `chunk` elements.
template <class F>
void for_pieces(const TeamContext& ctx, const Shape& shape, F&& f, int64_t chunk = kChunk) {
  const int64_t pieces = (shape[0] + chunk - 1) / chunk;
  const auto [first, last] = share(ctx, pieces * shape[1] * shape[2] * shape[3]);
  if (first == last) return;
  RowIndex row = row_index(shape, first / pieces);
  int64_t begin = first % pieces * chunk;
  for (int64_t i = first; i < last; ++i) {
    f(row, begin, std::min(chunk, shape[0] - begin));
    if ((begin += chunk) < shape[0]) continue;
    begin = 0;
    if (++row.i1 < shape[1]) continue;
    row.i1 = 0;
    if (++row.i2 < shape[2]) continue;
    row.i2 = 0;
    ++row.i3;
  }
}

/// Calls f(RowIndex) for each row that belongs to this part.
template <class F>
void for_rows(const TeamContext& ctx, const Shape& shape, F&& f) {
  for_pieces(ctx, {1, shape[1], shape[2], shape[3]}, [&](RowIndex row, int64_t, int64_t) { f(row); });
}

/// Whether all elements are adjacent, so that kernels can treat the tensor as one row. is_contiguous() does not
/// suffice, because it ignores the stride of rows with one element.
inline bool is_dense(const Tensor& tensor) {
  return tensor.is_contiguous() && tensor.strides[0] == traits(tensor.dtype).block_bytes;
}

/// Maximum number of elements per piece if all these tensors are processed together.
template <class... Tensors>
int64_t chunk_for(const Tensors&... tensors) {
  return (is_direct(tensors) && ...) ? kLongChunk : kChunk;
}

/// Returns the shape to iterate over. All operands must have the shape of the node. If all operands are dense, the
/// result is the shape of one long row.
template <class... Tensors>
Shape flat_shape(const Tensor& node, const Tensors&... sources) {
  return (is_dense(sources) && ...) ? Shape{node.elements(), 1, 1, 1} : node.shape;
}

/// Calls f(from, to, n) for each piece that belongs to this part. The result is a float tensor, and its source has the
/// same shape.
template <class F>
void map_pieces(const TeamContext& ctx, Tensor& node, F&& f) {
  const Tensor& x = *node.src[0];
  const auto piece = [&](RowIndex row, int64_t begin, int64_t n) {
    float in[kChunk], out[kChunk];
    std::byte* result = row_at(node, row);
    float* to = target(node, result, begin, out);
    f(load(x, row_at(x, row), begin, n, in), to, n);
    store(node, result, begin, n, to);
  };
  for_pieces(ctx, flat_shape(node, x), piece, chunk_for(node, x));
}

/// Whether the tensor is f32, f16 or bf16, with any strides.
inline bool is_float(const Tensor* tensor) {
  return tensor && traits(tensor->dtype).is_float;
}
/// Whether kernels can read the rows of the tensor. Quantised rows must have no gaps. Other rows may have any strides.
inline bool is_readable(const Tensor* tensor) {
  return tensor && (!traits(tensor->dtype).is_quantized || tensor->is_row_contiguous());
}
/// Whether kernels can write the result. The result must be a float tensor without gaps.
inline bool is_float_result(const Tensor& node) {
  return is_float(&node) && node.is_contiguous();
}
/// Whether the node meets the requirements of map_pieces().
inline bool maps_floats(const Tensor& node) {
  return is_float_result(node) && is_float(node.src[0]);
}

}  // namespace shoal::cpu
