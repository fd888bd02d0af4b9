// Implementations of ops on a CUDA device. The table in devices/cuda/ops/table.cpp contains one OpKernel per Op. An op
// with an empty OpKernel is not supported. supports_op() reads this table.
//
// run() queues kernels on the context's stream and returns. run() never waits, allocates or throws, because supports()
// has rejected all nodes that run() cannot compute. run() may be called while the stream is captured into a CUDA graph,
// so the kernel arguments must stay valid for later runs of the plan. run() is not called for views and empty results.
#pragma once

#include <cuda_runtime_api.h>

#include <cstddef>
#include <cstdint>
#include <span>

#include "devices/cuda/column_record.h"
#include "devices/cuda/switches.h"
#include "graph/tensor.h"

namespace shoal::cuda {

/// Properties of a physical GPU that the choice of kernels depends on. The properties are read once per GPU.
struct GpuTraits {
  int gpu = 0;                        ///< device number of the CUDA runtime
  int compute_capability = 0;         ///< for example 90 for 9.0
  int processors = 1;                 ///< number of multiprocessors
  size_t shared_bytes_per_block = 0;  ///< largest dynamic shared memory of a block, in bytes
  SwitchedOff off = {};
};

/// Number of counters of a LaunchContext.
inline constexpr int64_t kCounters = 4096;

struct LaunchContext {
  cudaStream_t stream = nullptr;
  GpuTraits gpu;
  /// kCounters counters, for kernels that count their finished blocks. Each counter is 0 before and after every kernel
  /// of the stream.
  uint32_t* counters = nullptr;
  std::byte* record_memory = nullptr;  ///< memory for one record: kRecordBytes bytes
  /// A record is a column converted to 8-bit integers (column_record.h). `writes`: forms of the record that the queued
  /// kernels write of their result. `reads`: forms of the record that the queued kernels read instead of the column.
  ColumnForms writes = {}, reads = {};

  ColumnRecord record(const ColumnForms& forms) const {
    return {forms.two ? record_memory : nullptr, forms.four ? record_memory + column_bytes(kMostRecorded, 2) : nullptr};
  }
};

struct OpKernel {
  void (*run)(const LaunchContext& context, Tensor& node) = nullptr;
  /// Whether run() supports the node's dtypes, shapes and strides.
  bool (*supports)(const Tensor& node) = nullptr;
  /// Number of scratch bytes (Tensor::workspace, aligned to 256). nullptr: no scratch memory.
  size_t (*workspace)(const Tensor& node, const GpuTraits& gpu) = nullptr;
};

/// Returns an op's kernel. The kernel's `run` is nullptr if the op is not supported.
const OpKernel& kernel_for(Op op);

}  // namespace shoal::cuda
