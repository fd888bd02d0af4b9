#include "devices/cpu/ops/rows.h"

#include <cstring>

#include "devices/cpu/isa.h"

namespace shoal::cpu {
namespace {

template <class T>
void gather(const std::byte* from, size_t stride, int64_t n, std::byte* to) {
  auto* out = reinterpret_cast<T*>(to);
  for (int64_t i = 0; i < n; ++i) out[i] = *reinterpret_cast<const T*>(from + i * stride);
}

const std::byte* block_at(const Tensor& tensor, const std::byte* row, int64_t element) {
  return row + element / traits(tensor.dtype).block_elems * tensor.strides[0];
}

/// Returns the vectorised function that converts `type` to f32. If there is no such function, returns type.to_f32.
auto to_f32_of(const DTypeTraits& type) {
  const auto vectorised = kernels().weights[static_cast<size_t>(type.dtype)].to_f32;
  return vectorised ? vectorised : type.to_f32;
}

}  // namespace

void copy_elements(const Tensor& tensor, const std::byte* row, int64_t begin, int64_t n, std::byte* to) {
  const DTypeTraits& type = traits(tensor.dtype);
  const std::byte* from = block_at(tensor, row, begin);
  if (tensor.strides[0] == type.block_bytes || n <= 1) {
    if (n > 0) std::memcpy(to, from, n / type.block_elems * type.block_bytes);
    return;
  }
  switch (type.block_bytes) {
    case 2:
      return gather<uint16_t>(from, tensor.strides[0], n, to);
    case 4:
      return gather<uint32_t>(from, tensor.strides[0], n, to);
    default:
      return gather<uint64_t>(from, tensor.strides[0], n, to);
  }
}

const float* load_into(float* scratch, const Tensor& tensor, const std::byte* row, int64_t begin, int64_t n) {
  const DTypeTraits& type = traits(tensor.dtype);
  const bool gaps = tensor.strides[0] != type.block_bytes;
  if (tensor.dtype == DType::kF32) {
    copy_elements(tensor, row, begin, n, reinterpret_cast<std::byte*>(scratch));
    return scratch;
  }
  if (!gaps) {
    to_f32_of(type)(block_at(tensor, row, begin), scratch, n);
    return scratch;
  }
  alignas(64) std::byte packed[kChunk * sizeof(int64_t)];
  for (int64_t i = 0; i < n; i += kChunk) {
    const int64_t part = std::min(kChunk, n - i);
    copy_elements(tensor, row, begin + i, part, packed);
    to_f32_of(type)(packed, scratch + i, part);
  }
  return scratch;
}

void convert(DType dtype, const float* values, void* to, int64_t n) {
  const auto vectorised = kernels().rows.from_f32[static_cast<size_t>(dtype)];
  (vectorised ? vectorised : traits(dtype).from_f32)(values, to, n);
}

void store(const Tensor& node, std::byte* row, int64_t begin, int64_t n, const float* values) {
  if (node.dtype == DType::kF32) return;
  const DTypeTraits& type = traits(node.dtype);
  convert(node.dtype, values, row + begin / type.block_elems * type.block_bytes, n);
}

}  // namespace shoal::cpu
