// The kernels of attention, and their choice. Each kernel on tensor cores is compiled in a separate file.
#pragma once

#include "devices/cuda/kernels/attention_arguments.h"
#include "devices/cuda/op_kernel.h"

namespace shoal::cuda::attention {

/// A kernel and its launch parameters.
struct Kernel {
  void (*kernel)(Arguments) = nullptr;
  size_t shared_bytes = 0;
  int64_t rows = 0;                  ///< number of rows per block
  int64_t blocks_per_processor = 1;  ///< number of concurrent blocks per multiprocessor
  int threads = kThreads;
  int parts = 1;  ///< number of parts of V's columns; each part has separate blocks
};

/// attention_tiles for heads of at most `columns` <= 256 elements. Blocks take 16 rows (few_rows) or 64 rows. Returns
/// no kernel unless keys and values have the same dtype or one is f16 and the other q8_0.
Kernel tiles(DType keys, DType values, int columns, bool few_rows);

/// attention_slices for d and e up to kSliceMostKeys, with keys and values of f16, bf16 or q8_0.
Kernel slices(DType keys, DType values, int d, int e);

/// attention_latent for keys of f16 or bf16 with d <= 576, whose first e <= 512 elements are the values.
Kernel latent(DType dtype);

/// The kernel that run() chooses for a node whose tensors have addresses. Tests also call choice().
enum class Choice { kTiles, kLatent, kSlices, kRows };
Choice choice(const Tensor& node, const GpuTraits& gpu);

}  // namespace shoal::cuda::attention
