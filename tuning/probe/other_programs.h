// CPU time of other programs. With it, a probe detects that the machine was not idle.
#pragma once

namespace shoal::probe {

/// CPU seconds that other processes have used on the hardware threads of this process, counted from an arbitrary start.
/// If a quota limits this process to fewer cores, use of the remaining cores does not count. 0 if the system does not
/// report these times.
double other_programs();

}  // namespace shoal::probe
