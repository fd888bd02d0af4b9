// Chooses an instance of attention_tiles; for the files that hold them.
#pragma once

#include "devices/cuda/kernels/attention_tiles.h"
#include "devices/cuda/ops/attention.h"

namespace shoal::cuda::attention {

template <KvType kK, KvType kV, int kD>
Kernel tile_kernel(bool few_rows) {
  constexpr int64_t kBlocks = kD <= 64 ? 3 : kD <= 128 ? 2 : 1;
  if (few_rows) return {attention_tiles<kK, kV, kD, 1>, Layout<kK, kV, kD, 1>::kBytes, 16, kBlocks};
  return {attention_tiles<kK, kV, kD, 4>, Layout<kK, kV, kD, 4>::kBytes, 64, kBlocks};
}

template <KvType kK, KvType kV>
Kernel tile_kernel(int columns, bool few_rows) {
  if (columns <= 64) return tile_kernel<kK, kV, 64>(few_rows);
  if (columns <= 128) return tile_kernel<kK, kV, 128>(few_rows);
  return tile_kernel<kK, kV, 256>(few_rows);
}

template <KvType kK>
Kernel tile_kernel(DType values, int columns, bool few_rows) {
  if (values == DType::kF16) return tile_kernel<kK, KvType::kF16>(columns, few_rows);
  if (values == DType::kBF16) return tile_kernel<kK, KvType::kBF16>(columns, few_rows);
  return tile_kernel<kK, KvType::kQ8_0>(columns, few_rows);
}

}  // namespace shoal::cuda::attention
