// attention on tensor cores for heads of up to 256 elements.
#include "devices/cuda/kernels/attention_tiles.h"

#include "devices/cuda/ops/attention.h"

namespace shoal::cuda::attention {
namespace {

template <KvType kK, KvType kV, int kD>
Kernel tile_kernel(bool few_rows) {
  constexpr int64_t kBlocks = kD <= 64 ? 3 : kD <= 128 ? 2 : 1;
  if (few_rows) return {attention_tiles<kK, kV, kD, 1>, Layout<kK, kV, kD, 1>::kBytes, 16, kBlocks};
  return {attention_tiles<kK, kV, kD, 4>, Layout<kK, kV, kD, 4>::kBytes, 64, kBlocks};
}

template <KvType kK, KvType kV>
Kernel tile_kernel(int columns, bool few_rows) {
  if constexpr (kK == kV) {
    if (columns <= 64) return tile_kernel<kK, kV, 64>(few_rows);
  }
  if (columns <= 128) return tile_kernel<kK, kV, 128>(few_rows);
  return tile_kernel<kK, kV, 256>(few_rows);
}

}  // namespace

Kernel tiles(DType keys, DType values, int columns, bool few_rows) {
  constexpr KvType kF16 = KvType::kF16, kBF16 = KvType::kBF16, kQ8 = KvType::kQ8_0;
  if (keys == DType::kBF16) return values == keys ? tile_kernel<kBF16, kBF16>(columns, few_rows) : Kernel{};
  if (values == DType::kBF16) return {};
  const bool f16_values = values == DType::kF16;
  if (keys == DType::kF16) {
    return f16_values ? tile_kernel<kF16, kF16>(columns, few_rows) : tile_kernel<kF16, kQ8>(columns, few_rows);
  }
  return f16_values ? tile_kernel<kQ8, kF16>(columns, few_rows) : tile_kernel<kQ8, kQ8>(columns, few_rows);
}

}  // namespace shoal::cuda::attention
