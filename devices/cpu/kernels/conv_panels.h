// The kernel of convolutions. table.cpp puts it into a table. conv.h documents it.
#pragma once

#include "devices/cpu/kernels/conv.h"
#include "devices/cpu/kernels/simd.h"

namespace shoal::cpu::SHOAL_ISA {

void conv_panels(const ConvPanels& args);

}  // namespace shoal::cpu::SHOAL_ISA
