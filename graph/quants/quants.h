// Conversion of every quantised type to f32, and of types with blocks of 32 from f32, in the form of the traits table
// (graph/dtype.cpp). n is a multiple of the block. Non-finite inputs give unspecified values, never a fault.
#pragma once

#include <cstdint>

namespace shoal::quants {

#define SHOAL_QUANTIZED(id, name, ...) void name##_to_f32(const void* src, float* dst, int64_t n);
#include "graph/dtypes.def"
#define SHOAL_QUANTIZED_32(id, name, ...) void name##_from_f32(const float* src, void* dst, int64_t n);
#include "graph/dtypes.def"

}  // namespace shoal::quants
