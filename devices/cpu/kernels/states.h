// The kernels of ops with a state as functions; table.cpp joins them. What each does: state_ops.h.
#pragma once

#include "devices/cpu/kernels/simd.h"
#include "devices/cpu/kernels/state_ops.h"

namespace shoal::cpu::SHOAL_ISA {

// causal_conv.cpp
void causal_conv(const ConvArgs& args);

// delta_columns.cpp
void delta_columns(const DeltaColumns& args);

// delta_chunks.cpp
inline constexpr int64_t kDeltaWidth = 2 * kLanes;
void delta_products(const DeltaProducts& args);
void delta_weights(const DeltaWeights& args);
void delta_chunk(const DeltaChunk& args);

}  // namespace shoal::cpu::SHOAL_ISA
