// rope of queries and keys and set_rows of keys and values, in one launch: what a decoder does between its projections
// and its attention. Of these nodes any may be missing; values that only a node of the launch reads are written too.
#pragma once

#include <span>

#include "devices/cuda/op_kernel.h"

namespace shoal::cuda {

/// The number of nodes, from the first on, that one launch runs. 1: the first node alone; 0: none.
size_t count_rope_set_rows(std::span<Tensor* const> nodes);

/// As run() of an op, of as many nodes as that says.
void rope_set_rows_run(const LaunchContext& context, std::span<Tensor* const> nodes);

}  // namespace shoal::cuda
