// Instruction-set levels of the CPU kernels. Every file in devices/cpu/kernels is compiled once per level. At first
// use, the program chooses the best level of the processor, or the level named by SHOAL_CPU_ISA. Thread-safe.
#pragma once

#include <string>
#include <string_view>
#include <vector>

#include "devices/cpu/kernels/kernels.h"

namespace shoal::cpu {

/// The kernels in use. Throws InvalidArgument if SHOAL_CPU_ISA is not the name of one of usable_levels().
const Kernels& kernels();

/// Name of the level in use.
std::string_view level_in_use();

/// Names of the compiled levels. The simplest level is first.
std::vector<std::string_view> built_levels();

/// Names of the compiled levels that this processor can run. The simplest level is first: {"baseline", "avx2",
/// "avx512"}.
std::vector<std::string_view> usable_levels();

/// The kernels of one level. The name "" selects the best level. For an unknown name, throws InvalidArgument that lists
/// usable_levels().
const Kernels& kernels_of(std::string_view level);

}  // namespace shoal::cpu
