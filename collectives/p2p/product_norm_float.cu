// Products with all_reduce and norm, of f32, f16 and bf16.
#include "collectives/p2p/product_norm_kernel.h"

namespace shoal::collectives::p2p {

ProductNormKernels product_norm_float(DType dtype) {
  switch (dtype) {
    case DType::kF32:
      return {product_norm_kernel<cuda::StreamedFloats<float>, cuda::Stream>};
    case DType::kF16:
      return {product_norm_kernel<cuda::StreamedFloats<__half>, cuda::Stream>};
    case DType::kBF16:
      return {product_norm_kernel<cuda::StreamedFloats<__nv_bfloat16>, cuda::Stream>};
    default:
      return {};
  }
}

}  // namespace shoal::collectives::p2p
