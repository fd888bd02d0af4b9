// The kernels of causal_conv and gated_delta. table.cpp puts them into a table. state_ops.h documents them.
#pragma once

#include "devices/cpu/kernels/simd.h"
#include "devices/cpu/kernels/state_ops.h"

namespace shoal::cpu::SHOAL_ISA {

// in causal_conv.cpp
void causal_conv(const ConvArgs& args);

// in delta_columns.cpp
void delta_columns(const DeltaColumns& args);

// in delta_chunks.cpp
inline constexpr int64_t kDeltaWidth = 2 * kLanes;
void delta_products(const DeltaProducts& args);
void delta_weights(const DeltaWeights& args);
void delta_chunk(const DeltaChunk& args);

}  // namespace shoal::cpu::SHOAL_ISA
