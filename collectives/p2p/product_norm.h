// all_reduce_norm() of a row that is a product with one column, in one kernel: no launch and no trip through memory
// between the two.
//
//   1. a rank's blocks stream rows of the weights (devices/cuda/ops/mul_mat_stream.h), and each sends its results in
//      packets to all ranks, its own included, as soon as it has them
//   2. the last blocks of the rank to come that far, up to four, receive the packets of a part of the row each,
//      exchange their sums of squares, and do the rest
//
// So only these blocks of a rank wait for other ranks. On the wire it is all_reduce_norm(), with the same bits: ranks
// may use one or the other.
#pragma once

#include "collectives/p2p/kernels.h"
#include "devices/cuda/ops/mul_mat_stream.h"

namespace shoal::collectives::p2p {

/// Dtypes of weights that there are kernels for, 1 << dtype.
uint64_t product_norm_dtypes();
/// Queues it, where `reduction.in` is the result of this mul_mat, which is not stored. False: not taken, for what is
/// no such product, or is not aligned.
bool product_norm(const cuda::LaunchContext& context, const Mesh& mesh, const NormReduction& reduction,
                  const Tensor& product);

}  // namespace shoal::collectives::p2p
