// Computes the inputs of a batch's graph from the positions of its tokens.
#pragma once

#include <cstdint>
#include <span>

#include "models/arch/architecture.h"

namespace shoal::models {

/// Writes all inputs of a graph except tokens and out_ids. `positions` has the position of each token of the batch,
/// ascending; padding at the end has negative positions. Before the batch, ring caches must hold the positions before
/// its first token.
void write_inputs(const DecoderGraph& graph, const Hparams& hparams, std::span<const int32_t> positions);

}  // namespace shoal::models
