// How an op runs on a CUDA device: one OpKernel per op, joined in a table (devices/cuda/ops/table.cpp) indexed by Op;
// an op whose kernel is empty is not supported, and supports_op reads the same table.
//
// run() queues kernels on the context's stream and returns. It never waits, allocates or throws: supports() has refused
// what it cannot do, and it may be called while the stream is captured into a CUDA graph, so that everything which it
// passes to a kernel must stay right for later runs of the same plan. Views and empty results are not run.
#pragma once

#include <cuda_runtime_api.h>

#include <cstddef>
#include <cstdint>
#include <span>

#include "devices/cuda/column_record.h"
#include "devices/cuda/switches.h"
#include "graph/tensor.h"

namespace shoal::cuda {

/// What kernels choose by; read once for each physical GPU.
struct GpuTraits {
  int gpu = 0;                        ///< CUDA's number of the physical GPU
  int compute_capability = 0;         ///< 90 for 9.0
  int processors = 1;                 ///< multiprocessors
  size_t shared_bytes_per_block = 0;  ///< that a block may ask for
  SwitchedOff off = {};
};

struct LaunchContext {
  cudaStream_t stream = nullptr;
  GpuTraits gpu;
  /// A number for each processor, for blocks of a kernel that count themselves: 0 when a kernel of the stream begins
  /// and when it ends.
  uint32_t* counters = nullptr;
  std::byte* record_memory = nullptr;  ///< kRecordBytes
  /// What the kernels that are queued by it leave of their result as a record, and what is there of their column.
  ColumnForms writes = {}, reads = {};

  ColumnRecord record(const ColumnForms& forms) const {
    return {forms.two ? record_memory : nullptr, forms.four ? record_memory + column_bytes(kMostRecorded, 2) : nullptr};
  }
};

struct OpKernel {
  void (*run)(const LaunchContext& context, Tensor& node) = nullptr;
  /// Dtypes, shapes and strides that run() handles.
  bool (*supports)(const Tensor& node) = nullptr;
  /// Scratch bytes (Tensor::workspace, aligned to 256); nullptr = none.
  size_t (*workspace)(const Tensor& node, const GpuTraits& gpu) = nullptr;
};

/// run == nullptr when the op is not supported.
const OpKernel& kernel_for(Op op);

}  // namespace shoal::cuda
