#include "collectives/p2p/product_norm.h"

#include <algorithm>

#include "collectives/p2p/dispatch.h"
#include "collectives/p2p/product_norm_kernel.h"

namespace shoal::collectives::p2p {
namespace {

template <class Work>
using ProductNormKernel = void (*)(Work, Mesh, NormReduction, int finishers);
struct Kernels {
  ProductNormKernel<cuda::Stream> one_by_one = nullptr;
  ProductNormKernel<cuda::ExpertStream> short_rows = nullptr;  ///< variant that processes several rows per step
  size_t finish_bytes = 0;                                     ///< bytes of shared memory that short_rows needs for
                                                               ///< finish_row()
};
template <class T>
constexpr Kernels floats_kernels() {
  return {product_norm_kernel<cuda::StreamedFloats<T>, cuda::Stream>};
}
template <DType kType>
constexpr Kernels blocks_kernels() {
  using Weights = cuda::StreamedBlocks<kType>;
  return {product_norm_kernel<Weights, cuda::Stream>, product_norm_kernel<Weights, cuda::ExpertStream>,
          kFinishBytes<Weights>};
}

/// The kernels for weights of a dtype. The pointers are null if there are no such kernels.
Kernels kernels_of(DType dtype) {
  switch (dtype) {
    case DType::kF32:
      return floats_kernels<float>();
    case DType::kF16:
      return floats_kernels<__half>();
    case DType::kBF16:
      return floats_kernels<__nv_bfloat16>();
#define SHOAL_CASE(dtype) \
  case dtype:             \
    return blocks_kernels<dtype>();
      SHOAL_CASE(DType::kQ4_0)
      SHOAL_CASE(DType::kQ8_0)
      SHOAL_CASE(DType::kQ4_K)
      SHOAL_CASE(DType::kQ5_K)
      SHOAL_CASE(DType::kQ6_K)
#undef SHOAL_CASE
    default:
      return {};
  }
}

/// Number of blocks that finish a row together. These blocks wait for other ranks, so their number is limited to the
/// communicator's number of blocks. The GPU then has room for the other blocks of the kernel. BlockShare does not count
/// blocks that only compute the product, because these blocks do not wait. If several blocks finish a row, they
/// exchange sums of squares, which takes about one memory latency. The division of the row among these blocks must save
/// more time than this latency. Example for 8 ranks: for a row of 8192 elements, one block needs 16 round trips to
/// memory, and 4 blocks need 5 (one of them for the squares). For a row of 4096 elements, one block needs 8 round
/// trips, and 2 blocks need 5.
int finishers_of(const Mesh& mesh, const NormReduction& work, unsigned blocks) {
  const int parts = parts_of_row(work.row);
  if (mesh.layout.ranks == 2 && parts == 2) return 1;
  return std::min({parts, mesh.layout.blocks, static_cast<int>(blocks)});
}

template <class Work>
bool queue(const cuda::LaunchContext& context, const Mesh& mesh, const NormReduction& reduction,
           ProductNormKernel<Work> kernel, const cuda::StreamLaunch<Work>& work) {
  const dim3 blocks(work.blocks), threads(cuda::kStreamThreads);
  const int finishers = finishers_of(mesh, reduction, work.blocks);
  if (work.early) {
    cuda::launch_early(context, kernel, blocks, threads, work.shared_bytes, work.stream, mesh, reduction, finishers);
  } else {
    cuda::launch(context.stream, kernel, blocks, threads, work.shared_bytes, work.stream, mesh, reduction, finishers);
  }
  return true;
}

}  // namespace

uint64_t product_norm_dtypes() {
  uint64_t dtypes = 0;
  for (size_t i = 0; i < kDTypeCount; ++i) {
    if (kernels_of(static_cast<DType>(i)).one_by_one != nullptr) dtypes |= uint64_t{1} << i;
  }
  return dtypes;
}

bool product_norm(const cuda::LaunchContext& context, const Mesh& mesh, const NormReduction& reduction,
                  const Tensor& product) {
  const Tensor& b = *product.src[1];
  const cuda::JoinedProduct joined{.a = product.src[0], .out = &product};
  const Kernels kernels = kernels_of(joined.a->dtype);
  if (kernels.one_by_one == nullptr || reduction.element != Element::kF32 || reduction.rows != 1 ||
      !reduction.has_whole_quads() || product.shape[0] != reduction.row) {
    return false;
  }
  if (!cuda::stream_supports({&joined, 1}, b, context.gpu)) return false;
  const size_t most = context.gpu.shared_bytes_per_block;
  if (auto work = cuda::short_rows_launch(context, joined, b)) {
    work->shared_bytes = std::max(work->shared_bytes, kernels.finish_bytes);
    return work->shared_bytes <= most && queue(context, mesh, reduction, kernels.short_rows, *work);
  }
  const cuda::StreamLaunch<cuda::Stream> work = cuda::stream_launch(context, joined, b);
  return work.shared_bytes <= most && queue(context, mesh, reduction, kernels.one_by_one, work);
}

}  // namespace shoal::collectives::p2p
