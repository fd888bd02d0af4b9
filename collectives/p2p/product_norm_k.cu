// Products with all_reduce and norm, of formats of 256 elements.
#include "collectives/p2p/product_norm_kernel.h"

namespace shoal::collectives::p2p {

ProductNormKernels product_norm_k(DType dtype) {
  switch (dtype) {
    case DType::kQ4_K:
      return product_norm_kernels<DType::kQ4_K>();
    case DType::kQ5_K:
      return product_norm_kernels<DType::kQ5_K>();
    case DType::kQ6_K:
      return product_norm_kernels<DType::kQ6_K>();
    default:
      return {};
  }
}

}  // namespace shoal::collectives::p2p
