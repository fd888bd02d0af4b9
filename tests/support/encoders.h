// Encoders of the types that are for weights only: the product reads them and never writes them
// (DTypeTraits::from_f32 is nullptr), tests make weights of them.
#pragma once

#include "graph/dtype.h"

namespace shoal::test {

#define SHOAL_QUANTIZED_32(...)
#define SHOAL_QUANTIZED(id, name, ...) void name##_from_f32(const float* src, void* dst, int64_t n);
#include "graph/dtypes.def"

/// n elements (a multiple of the block) as any dtype.
inline void from_f32(DType dtype, const float* src, void* dst, int64_t n) {
  switch (dtype) {
#define SHOAL_QUANTIZED_32(...)
#define SHOAL_QUANTIZED(id, name, ...) \
  case DType::k##id:                   \
    return name##_from_f32(src, dst, n);
#include "graph/dtypes.def"
    default:
      traits(dtype).from_f32(src, dst, n);
  }
}

}  // namespace shoal::test
