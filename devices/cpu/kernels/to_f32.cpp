// Converts rows of every float and quantised type to f32. Rounding is the same as in graph/quants: first the product is
// rounded, then the sum.
#include "devices/cpu/kernels/weights.h"

namespace shoal::cpu::SHOAL_ISA {

template <class Rows>
void rows_to_f32(const void* src, float* dst, int64_t n) {
  const auto* from = static_cast<const typename Rows::Element*>(src);
  int64_t i = 0;
  for (; i + kLanes <= n; i += kLanes) store(dst + i, Rows::load(from + i));
  for (; i < n; ++i) dst[i] = load_first<Rows>(from + i, 1)[0];
}

template <class Format>
void to_f32(const void* src, float* dst, int64_t n) {
  constexpr int kParts = Format::kParts, kGroups = Format::kGroups, kVectors = 32 / kLanes;
  const auto* blocks = static_cast<const typename Format::Block*>(src);
  for (int64_t i = 0; i < n / (32 * kParts); ++i) {
    const auto scales = Format::scales(blocks[i]);
    for (int part = 0; part < kParts; ++part, dst += 32) {
      int8_t values[32];
      store(values, values_of<Format>(blocks[i], part));
      SHOAL_UNROLL
      for (int v = 0; v < kVectors; ++v) {
        const int scale = part * kGroups + v * kGroups / kVectors;
        F32 result = to_float(load_widened(values + v * kLanes)) * splat(scales.scale[scale]);
        if constexpr (Format::kAdds) result += splat(scales.add[scale]);
        store(dst + v * kLanes, result);
      }
    }
  }
}

SHOAL_FOR_ROWS(template void rows_to_f32, (const void*, float*, int64_t))
#define SHOAL_QUANTIZED(id, ...) template void to_f32<id>(const void*, float*, int64_t);
#include "graph/dtypes.def"

}  // namespace shoal::cpu::SHOAL_ISA
