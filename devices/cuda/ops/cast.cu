// cast: converts elements of any dtype, through f32, to a plain dtype or to a dtype with blocks of 32 elements.
// Conversions between integer dtypes are exact. If both dtypes are equal, elements are copied.
#include "devices/cuda/ops/conversion.h"
#include "devices/cuda/ops/copy.h"
#include "devices/cuda/ops/map.h"
#include "devices/cuda/ops/ops.h"

namespace shoal::cuda {
namespace {

struct Cast {
  Operand to, from;
  Conversion<> convert;

  __device__ void operator()(const Index& i) const {
    const Index row{0, i.i1, i.i2, i.i3};
    convert(from.at(row), to.at(row), i.i0);
  }
};

constexpr int kWarps = 4;

/// Axis 0 of `shape` counts blocks of the result, not elements. A warp computes one block.
__global__ void cast_to_blocks(WalkShape shape, Operand to, Operand from, Conversion<> convert) {
  __shared__ QuantizeScratch scratch[kWarps];
  let_next_start();
  wait_for_previous();
  const int64_t count = shape.n0 * shape.rows, step = static_cast<int64_t>(gridDim.x) * kWarps;
  for (int64_t item = static_cast<int64_t>(blockIdx.x) * kWarps + threadIdx.y; item < count; item += step) {
    const int64_t row = item / shape.n0;
    const Index index = row_index(shape, row);
    convert.make_block(scratch[threadIdx.y], from.at(index), to.at(index), item - row * shape.n0);
  }
}

void run_cast(const LaunchContext& context, Tensor& node) {
  const Tensor& x = *node.src[0];
  if (x.dtype == node.dtype) return run_contiguous(context, node);
  convert_elements(context, node.shape, operand_of(node), node.dtype, operand_of(x), x.dtype);
}

bool supports_cast(const Tensor& node) {
  const bool can_write = traits(node.dtype).block_elems <= quants::kBlock;
  return is_readable(node.src[0]) && node.is_contiguous() && (can_write || node.src[0]->dtype == node.dtype);
}

}  // namespace

const OpKernel kCastKernel{run_cast, supports_cast, nullptr};

void convert_elements(const LaunchContext& context, Shape shape, Operand to, DType to_dtype, Operand from,
                      DType from_dtype) {
  if (traits(to_dtype).is_quantized) {
    const Shape elements = shape;
    shape[0] /= quants::kBlock;
    const WalkShape blocks = walk_shape(shape);
    const int64_t needed = (blocks.n0 * blocks.rows + kWarps - 1) / kWarps;
    const auto grid = static_cast<unsigned>(std::min<int64_t>(needed, std::max(context.gpu.processors, 1) * 64));
    return launch_early(context, cast_to_blocks, dim3(grid), dim3(32, kWarps), 0, blocks, to, from,
                        conversion_of(to, to_dtype, shape, from, from_dtype, elements));
  }
  if (!traits(from_dtype).is_quantized) join_axes(shape, {&to, &from});
  const Conversion<> convert = conversion_of(to, to_dtype, shape, from, from_dtype, shape);
  if (convert.eight) shape[0] /= Conversion<>::kItem;
  walk(context, shape, Cast{to, from, convert});
}

}  // namespace shoal::cuda
