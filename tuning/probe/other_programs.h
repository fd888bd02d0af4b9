// CPU time of other programs. A probe compares two values to detect that the machine was not idle.
#pragma once

namespace shoal::probe {

/// CPU seconds that other processes have used on the hardware threads of this process, counted from an arbitrary start
/// time. If a quota limits this process to fewer cores, the result excludes the CPU seconds that the remaining cores
/// provide. 0 if the system does not report these times.
double other_programs();

}  // namespace shoal::probe
