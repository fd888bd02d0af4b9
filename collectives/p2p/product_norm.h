// One kernel for a mul_mat with one column and the all_reduce_norm() of its result. The fusion saves a launch and a
// round trip through memory.
//
//   1. A rank's blocks stream rows of the weights (devices/cuda/ops/mul_mat_stream.h). As soon as a block has computed
//      results, it sends them in packets to all ranks, its own rank included.
//   2. The rank's last blocks to finish step 1 (up to four blocks) finish the row. Each of these blocks receives the
//      packets of a part of the row. These blocks exchange their sums of squares, and compute the residual sum and the
//      norm.
//
// Only the blocks in step 2 wait for other ranks. Packets and results have the same bits as in all_reduce_norm(), so
// some ranks may use this kernel while other ranks use all_reduce_norm().
#pragma once

#include "collectives/p2p/kernels.h"
#include "devices/cuda/ops/mul_mat_stream.h"

namespace shoal::collectives::p2p {

/// Bit mask (1 << dtype) of the dtypes of weights for which product_norm() has a kernel.
uint64_t product_norm_dtypes();
/// Queues the fused kernel. `reduction.in` is the result of `product`; the kernel does not store this result. Queues
/// nothing and returns false if there is no kernel for `product` or if an operand is not aligned.
bool product_norm(const cuda::LaunchContext& context, const Mesh& mesh, const NormReduction& reduction,
                  const Tensor& product);

}  // namespace shoal::collectives::p2p
