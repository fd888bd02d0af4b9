// The choice of experts (models/arch/experts.cpp) as one kernel: gating of the logits, a sum with preferences, top_k,
// the weights of the chosen ones and their normalisation. Experts are chosen as by the single nodes, weights agree
// within rounding.
#pragma once

#include <span>

#include "devices/cuda/op_kernel.h"
#include "graph/readers.h"

namespace shoal::cuda {

/// How many nodes from the first one on are such a chain; 0: none. Only its ids and last weights are written.
size_t count_router(std::span<Tensor* const> nodes, const Readers& readers);
void router_run(const LaunchContext& context, std::span<Tensor* const> nodes);

}  // namespace shoal::cuda
