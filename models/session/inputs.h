// What a batch's graph gets that follows from the positions of its tokens. Pure functions but for the writing.
#pragma once

#include <cstdint>
#include <span>

#include "models/arch/architecture.h"

namespace shoal::models {

/// Writes the inputs of a graph but tokens and out_ids. `positions`: of each token of the batch, ascending; < 0 where
/// there is none, which comes last. What the graph's ring caches hold before it are the positions before the first.
void write_inputs(const DecoderGraph& graph, const Hparams& hparams, std::span<const int32_t> positions);

}  // namespace shoal::models
