// Products with all_reduce and norm, of formats of 32 elements.
#include "collectives/p2p/product_norm_kernel.h"

namespace shoal::collectives::p2p {

ProductNormKernels product_norm_32(DType dtype) {
  switch (dtype) {
    case DType::kQ4_0:
      return product_norm_kernels<DType::kQ4_0>();
    case DType::kQ8_0:
      return product_norm_kernels<DType::kQ8_0>();
    default:
      return {};
  }
}

}  // namespace shoal::collectives::p2p
