// CPU time of other programs, by which a probe notices that it does not have the machine to itself.
#pragma once

namespace shoal::probe {

/// CPU seconds that other processes have used of the hardware threads that this process may use, from an arbitrary
/// beginning. Cores beyond this process's quota do not count: others may use them. 0 if the system does not say.
double other_programs();

}  // namespace shoal::probe
