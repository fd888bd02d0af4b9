// The kernels of attention, and the choice of a kernel. Each kernel on tensor cores has a separate source file.
#pragma once

#include "devices/cuda/kernels/attention_arguments.h"
#include "devices/cuda/op_kernel.h"

namespace shoal::cuda::attention {

/// A kernel and its launch parameters.
struct Kernel {
  void (*kernel)(Arguments) = nullptr;
  size_t shared_bytes = 0;
  int64_t rows = 0;                  ///< number of query rows per block
  int64_t blocks_per_processor = 1;  ///< number of blocks that run at the same time on a multiprocessor
  int threads = kThreads;
  int parts = 1;  ///< number of parts into which V's columns are divided; each part has separate blocks
};

/// Returns attention_tiles for heads of at most `columns` elements. `columns` is at most 256. A block takes 16 rows if
/// `few_rows` is set, else 64 rows. The keys and values must have the same dtype, or one must be f16 and the other
/// q8_0. Otherwise, this function returns no kernel.
Kernel tiles(DType keys, DType values, int columns, bool few_rows);

/// Returns attention_slices for keys of d elements and values of e elements. Both numbers must be at most
/// kSliceMostKeys. Keys and values must be f16, bf16 or q8_0.
Kernel slices(DType keys, DType values, int d, int e);

/// Returns attention_latent for keys of f16 or bf16. A key has at most 576 elements, and its first elements (at most
/// 512) are the value.
Kernel latent(DType dtype);

/// Returns the kernel that run() chooses. The node's tensors must have addresses. Tests also call this function.
enum class Choice { kTiles, kLatent, kSlices, kRows };
Choice choice(const Tensor& node, const GpuTraits& gpu);

}  // namespace shoal::cuda::attention
