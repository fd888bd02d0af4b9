// Indices of rows and experts: elements of id tensors, and the rows that they name (graph/ops/select.h).
#pragma once

#include <cstdint>

#include "graph/ops/select.h"
#include "graph/tensor.h"

namespace shoal::cpu {

/// Element of an i32 or i64 tensor.
inline int64_t index_at(const Tensor& ids, int64_t i0, int64_t i1 = 0, int64_t i2 = 0) {
  const std::byte* at = ids.data + i0 * ids.strides[0] + i1 * ids.strides[1] + i2 * ids.strides[2];
  return ids.dtype == DType::kI64 ? *reinterpret_cast<const int64_t*>(at) : *reinterpret_cast<const int32_t*>(at);
}

}  // namespace shoal::cpu
