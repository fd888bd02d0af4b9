// The kernels of causal_conv and gated_delta. table.cpp puts them into a table. state_ops.h documents them.
#pragma once

#include "devices/cpu/kernels/simd.h"
#include "devices/cpu/kernels/state_ops.h"

namespace shoal::cpu::SHOAL_ISA {

// in causal_conv.cpp
void causal_conv(const ConvArgs& args);

// in gated_delta.cpp
void gated_delta(const DeltaArgs& args);

}  // namespace shoal::cpu::SHOAL_ISA
