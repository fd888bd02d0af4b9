// Instruction-set levels of the CPU kernels. Every file in devices/cpu/kernels is compiled once per level. The first
// use chooses the best level of the processor, or the level named by SHOAL_CPU_ISA. Thread-safe.
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

/// The compiled levels, simplest first.
std::vector<std::string_view> built_levels();

/// The compiled levels that this processor can run, simplest first: {"baseline", "avx2", "avx512"}.
std::vector<std::string_view> usable_levels();

/// The kernels of one level; "" is the best level. For an unknown name, throws InvalidArgument that lists
/// usable_levels().
const Kernels& kernels_of(std::string_view level);

}  // namespace shoal::cpu
