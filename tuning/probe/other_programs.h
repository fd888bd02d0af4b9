// CPU time of other programs. A probe compares the values before and after its measurements to detect that the machine
// was not idle.
#pragma once

namespace shoal::probe {

/// CPU seconds that other processes have used on the hardware threads of this process, counted from an arbitrary start
/// time. If a quota limits this process to fewer cores than the machine has, the result excludes the CPU seconds that
/// the remaining cores provide. If the system does not report these times, the result never increases.
double other_programs();

}  // namespace shoal::probe
