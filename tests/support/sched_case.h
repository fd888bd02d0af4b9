// Runs a random case with a scheduler over several backends. Weights, caches and some nodes are assigned to random
// backends.
#pragma once

#include <memory>
#include <span>
#include <string>
#include <vector>

#include "sched/scheduler.h"
#include "tests/support/run_case.h"

namespace shoal::test {

/// Runs the case twice with a scheduler over the backends, and returns the outputs and caches. All plan memory is first
/// filled with NaN. `seed` determines all placements. Throws std::runtime_error if the two runs give different bits.
/// Also queues several runs with different inputs, and throws if their results differ from the results of separate
/// runs.
Results run_scheduled(const RandomCase& one, std::span<Backend* const> backends, uint64_t seed);

/// Returns the difference between run_scheduled() and a run on `reference`; "" if there is none. An exception counts as
/// a difference.
std::string check_scheduled(const RandomCase& one, std::span<Backend* const> backends, Device& reference,
                            uint64_t seed);

}  // namespace shoal::test
