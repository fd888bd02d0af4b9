// Computes the inputs of a graph from the positions of the tokens in the batch.
#pragma once

#include <cstdint>
#include <span>

#include "models/arch/architecture.h"

namespace shoal::models {

/// Writes all inputs of a graph except tokens and out_ids. `positions` has the position of each token of the batch, in
/// ascending order. Padding tokens are at the end and have negative positions. When the batch runs, ring caches must
/// hold the positions before the first token of the batch.
void write_inputs(const DecoderGraph& graph, const Hparams& hparams, std::span<const int32_t> positions);

}  // namespace shoal::models
