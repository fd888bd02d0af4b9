// cast: any dtype to a plain one by way of f32; integers among themselves exactly, equal dtypes as they are.
#include "devices/cuda/kernels/dequantize.h"
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

void run_cast(const LaunchContext& context, Tensor& node) {
  const Tensor& x = *node.src[0];
  if (x.dtype == node.dtype) return run_contiguous(context, node);
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

/// Only set_rows writes blocks.
bool supports_cast(const Tensor& node) {
  const bool to_plain = !traits(node.dtype).is_quantized || node.src[0]->dtype == node.dtype;
  return is_readable(node.src[0]) && node.is_contiguous() && to_plain;
}

}  // namespace

const OpKernel kCastKernel{run_cast, supports_cast, nullptr};

}  // namespace shoal::cuda
