// The kernels of convolutions. table.cpp puts them into a table. conv.h documents them.
#pragma once

#include "devices/cpu/kernels/conv.h"
#include "devices/cpu/kernels/kernels.h"
#include "devices/cpu/kernels/simd.h"

namespace shoal::cpu::SHOAL_ISA {

void conv_panels(const ConvPanels& args);
void conv_rows(const ConvPanels& args, const PanelArgs& product);

}  // namespace shoal::cpu::SHOAL_ISA
