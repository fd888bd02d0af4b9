// cast: any dtype to a plain one or to blocks of 32 by way of f32; integers among themselves exactly, equal dtypes as
// they are.
#include "devices/cuda/kernels/quantize.h"
#include "devices/cuda/ops/copy.h"
#include "devices/cuda/ops/map.h"
#include "devices/cuda/ops/ops.h"

namespace shoal::cuda {
namespace {

constexpr int kItem = 8;  // elements that a thread converts at once

bool is_integer(DType dtype) {
  return dtype == DType::kI32 || dtype == DType::kI64;
}

struct Cast {
  Operand to, from;
  DType to_dtype, from_dtype;
  bool integers, quantized;
  bool eight;  ///< elements at a time, of rows without gaps

  __device__ void operator()(const Index& i) const {
    const Index first{eight ? i.i0 * kItem : i.i0, i.i1, i.i2, i.i3};
    std::byte* const target = to.at(first);
    if (integers) {
      const int64_t x = integer_at(from_dtype, from.at(first));
      return to_dtype == DType::kI64 ? store_as<int64_t>(target, x)
                                     : store_as<int32_t>(target, static_cast<int32_t>(x));
    }
    float values[kItem];
    if (eight || quantized) load_eight(from_dtype, from.at({0, i.i1, i.i2, i.i3}), first.i0 / kItem * kItem, values);
    if (eight) return store_eight(to_dtype, values, target);
    store_float(to_dtype, quantized ? pick(values, first.i0 % kItem) : float_at(from_dtype, from.at(first)), target);
  }
};

constexpr int kWarps = 4;

/// Axis 0 of the shape counts blocks of the result; a warp makes one.
__global__ void cast_to_blocks(WalkShape shape, Operand to, Operand from, DType to_dtype, DType from_dtype,
                               bool quantized) {
  __shared__ QuantizeScratch scratch[kWarps];
  QuantizeScratch& s = scratch[threadIdx.y];
  let_next_start();
  wait_for_previous();
  const int64_t count = shape.n0 * shape.rows, step = static_cast<int64_t>(gridDim.x) * kWarps;
  for (int64_t item = static_cast<int64_t>(blockIdx.x) * kWarps + threadIdx.y; item < count; item += step) {
    const int64_t row = item / shape.n0, block = item - row * shape.n0;
    const Index index = row_index(shape, row);
    const int64_t element = block * quants::kBlock + threadIdx.x;
    if (quantized) {
      float values[kItem];
      load_eight(from_dtype, from.at(index), element / kItem * kItem, values);
      s.x[threadIdx.x] = pick(values, element % kItem);
    } else {
      s.x[threadIdx.x] = float_at(from_dtype, from.at(index) + element * from.strides[0]);
    }
    __syncwarp();
    quantize_block(s, to_dtype, to.at(index) + block * to.strides[0]);
    __syncwarp();
  }
}

void run_to_blocks(const LaunchContext& context, const Tensor& x, const Tensor& node) {
  Shape shape = node.shape;
  shape[0] /= quants::kBlock;
  const WalkShape blocks = walk_shape(shape);
  const int64_t needed = (blocks.n0 * blocks.rows + kWarps - 1) / kWarps;
  const auto grid = static_cast<unsigned>(std::min<int64_t>(needed, std::max(context.gpu.processors, 1) * 64));
  launch_early(context, cast_to_blocks, dim3(grid), dim3(32, kWarps), 0, blocks, operand_of(node), operand_of(x),
               node.dtype, x.dtype, traits(x.dtype).is_quantized);
}

void run_cast(const LaunchContext& context, Tensor& node) {
  const Tensor& x = *node.src[0];
  if (x.dtype == node.dtype) return run_contiguous(context, node);
  if (traits(node.dtype).is_quantized) return run_to_blocks(context, x, node);
  Shape shape = node.shape;
  const bool quantized = traits(x.dtype).is_quantized;
  Cast cast{operand_of(node), operand_of(x), node.dtype, x.dtype, is_integer(x.dtype) && is_integer(node.dtype),
            quantized,        false};
  if (!quantized) join_axes(shape, {&cast.to, &cast.from});
  const auto fits = [&](const Operand& operand, DType dtype) {
    const auto bytes = static_cast<int64_t>(traits(dtype).block_bytes);
    return traits(dtype).is_float && has_packs(operand, shape, bytes, 16 / bytes);
  };
  cast.eight = shape[0] % kItem == 0 && fits(cast.to, node.dtype) && (quantized || fits(cast.from, x.dtype));
  if (cast.eight) shape[0] /= kItem;
  walk(context, shape, cast);
}

bool supports_cast(const Tensor& node) {
  const bool can_write = !traits(node.dtype).is_quantized || is_written_block(node.dtype);
  return is_readable(node.src[0]) && node.is_contiguous() && (can_write || node.src[0]->dtype == node.dtype);
}

}  // namespace

const OpKernel kCastKernel{run_cast, supports_cast, nullptr};

}  // namespace shoal::cuda
