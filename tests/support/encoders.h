// Encoders of the dtypes that only weights have. shoal reads these dtypes but never writes them, so
// DTypeTraits::from_f32 is nullptr for these dtypes. Tests create weights with these encoders.
#pragma once

#include "graph/dtype.h"

namespace shoal::test {

#define SHOAL_QUANTIZED_32(...)
#define SHOAL_QUANTIZED(id, name, ...) void name##_from_f32(const float* src, void* dst, int64_t n);
#include "graph/dtypes.def"

/// Encodes n elements to any dtype. n must be a multiple of the block length.
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
