// Quantised weights of tests. The types that are for weights only (DTypeTraits::from_f32 is nullptr) have no encoder:
// their blocks are drawn, with the mean square of the values that they stand for. Thread-safe.
#pragma once

#include "graph/dtype.h"

namespace shoal::test {

/// n elements (a multiple of the block) as any dtype. The same values always give the same block, and values that were
/// decoded from a drawn block give that block.
void from_f32(DType dtype, const float* src, void* dst, int64_t n);

}  // namespace shoal::test
