// Instruction-set levels of the CPU kernels. Every file in devices/cpu/kernels is compiled once per level; the best
// level that the processor has is chosen at first use, or the one that SHOAL_CPU_ISA names. Thread-safe.
#pragma once

#include <string>
#include <string_view>
#include <vector>

#include "devices/cpu/kernels/kernels.h"

namespace shoal::cpu {

/// The kernels in use. Throws InvalidArgument when SHOAL_CPU_ISA is not one of usable_levels().
const Kernels& kernels();

/// The name of its level.
std::string_view level_in_use();

/// Levels that were compiled, simplest first.
std::vector<std::string_view> built_levels();

/// Levels that this processor can run, simplest first: {"baseline", "avx2", "avx512"}.
std::vector<std::string_view> usable_levels();

/// The kernels of one level; "" is the best. Throws InvalidArgument that lists usable_levels() for any other name.
const Kernels& kernels_of(std::string_view level);

}  // namespace shoal::cpu
