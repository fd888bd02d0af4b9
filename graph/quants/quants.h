// Converts every quantised type to f32, and f32 to the types with blocks of 32 elements. The functions have the
// signatures of the traits table (graph/dtype.cpp). n is a multiple of the block size. Non-finite inputs give
// unspecified values but cause no fault.
#pragma once

#include <cstdint>

namespace shoal::quants {

#define SHOAL_QUANTIZED(id, name, ...) void name##_to_f32(const void* src, float* dst, int64_t n);
#include "graph/dtypes.def"
#define SHOAL_QUANTIZED_32(id, name, ...) void name##_from_f32(const float* src, void* dst, int64_t n);
#include "graph/dtypes.def"

}  // namespace shoal::quants
