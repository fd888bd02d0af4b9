// Transfers in a stream's queue. Traces show the description of each transfer.
#pragma once

#include <string_view>
#include <type_traits>

#include "devices/backend.h"

namespace shoal {

/// Copies rows of a tensor from host memory (SetWork) or to host memory (GetWork).
template <class TensorType, class Data>
struct RowsWork {
  TensorType* tensor;
  BufferRef memory;  ///< the tensor's buffer; the work holds this buffer (HeldBuffer) while it accesses the tensor
  Data* data;
  size_t host_stride;
  Rows rows;
};
using SetWork = RowsWork<Tensor, const void>;
using GetWork = RowsWork<const Tensor, void>;

struct CopyWork {
  const Tensor* src;
  Tensor* dst;
  BufferRef from, to;
};

template <class TensorType, class Data>
void describe(const RowsWork<TensorType, Data>& work, TraceSpan& span) {
  const HeldBuffer held(work.memory);
  if (!held) return;
  const std::string_view verb = std::is_const_v<TensorType> ? "get " : "set ";
  span.describe(TraceKind::kCopy, {verb, work.tensor->name},
                static_cast<int64_t>(work.rows.rows * work.rows.row_bytes));
}
inline void describe(const CopyWork& work, TraceSpan& span) {
  const HeldBuffer held(work.from);
  if (!held) return;
  span.describe(TraceKind::kCopy, {"copy ", work.src->name}, static_cast<int64_t>(work.src->bytes()));
}

}  // namespace shoal
