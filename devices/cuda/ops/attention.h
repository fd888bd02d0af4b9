// The kernels of attention on tensor cores: one file for each dtype of keys, so that they are compiled in parallel.
#pragma once

#include "devices/cuda/kernels/attention_arguments.h"

namespace shoal::cuda::attention {

/// A kernel for blocks of 128 threads.
struct TileKernel {
  void (*kernel)(Arguments) = nullptr;
  size_t shared_bytes = 0;
};

/// For values of f16, bf16 or q8_0 and heads of at most `columns` <= 256 elements; few_rows: blocks of 16 rows, else
/// of 64.
TileKernel tiles_with_f16_keys(DType values, int columns, bool few_rows);
TileKernel tiles_with_bf16_keys(DType values, int columns, bool few_rows);
TileKernel tiles_with_q8_0_keys(DType values, int columns, bool few_rows);

}  // namespace shoal::cuda::attention
