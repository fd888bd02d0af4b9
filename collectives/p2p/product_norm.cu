#include "collectives/p2p/product_norm.h"

#include <algorithm>

#include "collectives/p2p/dispatch.h"

namespace shoal::collectives::p2p {
namespace {

ProductNormKernels kernels_of(DType dtype) {
  for (const auto find : {product_norm_32, product_norm_k, product_norm_float}) {
    if (const ProductNormKernels kernels = find(dtype); kernels.one_by_one != nullptr) return kernels;
  }
  return {};
}

template <class Function>
void for_each_dtype(const Function& function) {
  for (size_t i = 0; i < kDTypeCount; ++i) {
    const ProductNormKernels kernels = kernels_of(static_cast<DType>(i));
    if (kernels.one_by_one != nullptr) function(i, kernels);
  }
}

/// Rows are whole quads, aligned to 16, and one row is all.
bool is_whole(const NormReduction& work) {
  const auto addresses = {work.residual, work.weight, static_cast<const float*>(work.sum),
                          static_cast<const float*>(work.normed)};
  const auto is_aligned = [](const float* address) { return reinterpret_cast<uintptr_t>(address) % 16 == 0; };
  return work.element == Element::kF32 && work.rows == 1 && work.row % 4 == 0 &&
         std::all_of(addresses.begin(), addresses.end(), is_aligned);
}

/// Blocks that finish the row together: at most the blocks of the share, so that the rest of the kernel finds room
/// while they wait. The exchange of squares takes about one trip to memory, so it has to save more than one.
int finishers_of(const Mesh& mesh, const NormReduction& work, unsigned blocks) {
  const int parts = parts_of_row(work.row);
  if (mesh.layout.ranks == 2 && parts == 2) return 1;
  return std::min({parts, mesh.layout.blocks, static_cast<int>(blocks)});
}

}  // namespace

namespace {

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
  for_each_dtype([&](size_t dtype, const ProductNormKernels&) { dtypes |= uint64_t{1} << dtype; });
  return dtypes;
}

bool product_norm(const cuda::LaunchContext& context, const Mesh& mesh, const NormReduction& reduction,
                  const Tensor& product) {
  const Tensor& b = *product.src[1];
  const cuda::JoinedProduct joined{.a = product.src[0], .out = &product};
  const ProductNormKernels kernels = kernels_of(joined.a->dtype);
  if (kernels.one_by_one == nullptr || !is_whole(reduction) || product.shape[0] != reduction.row) return false;
  if (!cuda::stream_supports({&joined, 1}, b, context.gpu)) return false;
  const size_t most = context.gpu.shared_bytes_per_block;
  if (auto work = cuda::short_rows_launch(context, joined, b)) {
    work->shared_bytes = std::max(work->shared_bytes, kernels.finish_bytes);
    return work->shared_bytes <= most && queue(context, mesh, reduction, kernels.short_rows, *work);
  }
  const cuda::StreamLaunch<cuda::Stream> work = cuda::stream_launch(context, joined, b);
  return work.shared_bytes <= most && queue(context, mesh, reduction, kernels.one_by_one, work);
}

cudaError_t load_product_norm() {
  cudaError_t status = cudaSuccess;
  for_each_dtype([&](size_t, const ProductNormKernels& kernels) {
    load_kernel(kernels.one_by_one, status);
    if (kernels.short_rows != nullptr) load_kernel(kernels.short_rows, status);
  });
  return status;
}

}  // namespace shoal::collectives::p2p
