// Element-wise conversion of rows from one dtype to another, for cast, get_rows and set_rows. A warp computes a
// quantised block of 32 elements.
#pragma once

#include "devices/cuda/kernels/quantize.h"
#include "devices/cuda/ops/walk.h"

namespace shoal::cuda {

/// kFromBlocks: whether the source may be quantised. If kFromBlocks is false, kernels need fewer registers and no
/// stack.
template <bool kFromBlocks = true>
struct Conversion {
  static constexpr int kItem = 8;

  DType to_dtype, from_dtype;
  int64_t to_stride, from_stride;  ///< strides of elements or blocks, in bytes
  bool integers, quantized;        ///< integers: whether source and result are integers; quantized: whether the source
                                   ///< consists of blocks
  bool eight;                      ///< whether an item has eight elements instead of one; requires rows without gaps

  /// Returns element i of a row of floats or blocks.
  __device__ float element(const std::byte* row, int64_t i) const {
    if constexpr (kFromBlocks) {
      if (quantized) {
        float values[kItem];
        load_eight(from_dtype, row, i / kItem * kItem, values);
        return pick(values, i % kItem);
      }
    }
    return float_at(from_dtype, row + i * from_stride);
  }
  __device__ void load(const std::byte* row, int64_t i, float (&values)[kItem]) const {
    if constexpr (kFromBlocks) return load_eight(from_dtype, row, i, values);
    row += i * from_stride;
    if (from_dtype == DType::kF32) return load_floats<float>(row, values);
    from_dtype == DType::kF16 ? load_floats<__half>(row, values) : load_floats<__nv_bfloat16>(row, values);
  }
  /// Converts item `item` of a row. An item has eight elements if `eight` is set, else one element. Writes zeros if
  /// `from` is nullptr.
  __device__ void operator()(const std::byte* from, std::byte* to, int64_t item) const {
    const int64_t first = eight ? item * kItem : item;
    to += first * to_stride;
    if (integers) {
      const int64_t x = from ? integer_at(from_dtype, from + first * from_stride) : 0;
      return to_dtype == DType::kI64 ? store_as<int64_t>(to, x) : store_as<int32_t>(to, static_cast<int32_t>(x));
    }
    if (!eight) return store_float(to_dtype, from ? element(from, first) : 0.0f, to);
    float values[kItem] = {};
    if (from) load(from, first, values);
    store_eight(to_dtype, values, to);
  }
  /// Computes block `block` of a row. All lanes of a warp must call this function.
  __device__ void make_block(QuantizeScratch& s, const std::byte* from, std::byte* to, int64_t block) const {
    s.x[threadIdx.x] = element(from, block * quants::kBlock + threadIdx.x);
    __syncwarp();
    quantize_block(s, to_dtype, to + block * to_stride);
    __syncwarp();
  }
};

/// Returns the conversion between rows of these shapes.
template <bool kFromBlocks = true>
Conversion<kFromBlocks> conversion_of(const Operand& to, DType to_dtype, const Shape& to_shape, const Operand& from,
                                      DType from_dtype, const Shape& from_shape) {
  const auto is_integer = [](DType dtype) { return dtype == DType::kI32 || dtype == DType::kI64; };
  const auto fits = [](const Operand& operand, DType dtype, const Shape& shape) {
    const auto bytes = static_cast<int64_t>(traits(dtype).block_bytes);
    return traits(dtype).is_float && has_packs(operand, shape, bytes, 16 / bytes);
  };
  const bool quantized = traits(from_dtype).is_quantized;
  const bool eight = to_shape[0] % Conversion<>::kItem == 0 && fits(to, to_dtype, to_shape) &&
                     (quantized || fits(from, from_dtype, from_shape));
  return {to_dtype,  from_dtype, to.strides[0], from.strides[0], is_integer(to_dtype) && is_integer(from_dtype),
          quantized, eight};
}

/// Converts elements of f32, f16 or bf16, or blocks of a quantised dtype, to `to_dtype`. `shape` is the common shape in
/// elements. A quantised result has blocks of 32 elements. Defined in cast.cu.
void convert_elements(const LaunchContext& context, Shape shape, Operand to, DType to_dtype, Operand from,
                      DType from_dtype);

}  // namespace shoal::cuda
