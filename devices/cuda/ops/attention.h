// The kernels of attention and the choice between them; those on tensor cores are compiled in files of their own.
#pragma once

#include "devices/cuda/kernels/attention_arguments.h"
#include "devices/cuda/op_kernel.h"

namespace shoal::cuda::attention {

/// A kernel and what its launch needs.
struct Kernel {
  void (*kernel)(Arguments) = nullptr;
  size_t shared_bytes = 0;
  int64_t rows = 0;                  ///< of a block
  int64_t blocks_per_processor = 1;  ///< that a processor holds at once
  int threads = kThreads;
  int parts = 1;  ///< of V's columns, each a set of blocks
};

/// attention_tiles for heads of at most `columns` <= 256 elements; few_rows: blocks of 16 rows, else of 64. Without a
/// kernel if keys and values are neither of one dtype nor f16 and q8_0.
Kernel tiles(DType keys, DType values, int columns, bool few_rows);

/// attention_slices for d, e <= kSliceMostKeys; keys and values of f16, bf16 or q8_0.
Kernel slices(DType keys, DType values, int d, int e);

/// attention_latent for keys of f16 or bf16, d <= 576, whose first e <= 512 elements are the values.
Kernel latent(DType dtype);

/// The kernel of a node whose tensors have addresses, for tests too.
enum class Choice { kTiles, kLatent, kSlices, kRows };
Choice choice(const Tensor& node, const GpuTraits& gpu);

}  // namespace shoal::cuda::attention
