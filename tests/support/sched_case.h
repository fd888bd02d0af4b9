// Runs a random case on several backends of a scheduler. Weights, caches and some of the nodes are on random backends.
#pragma once

#include <memory>
#include <span>
#include <string>
#include <vector>

#include "sched/scheduler.h"
#include "tests/support/run_case.h"

namespace shoal::test {

/// Runs the case twice by a scheduler on these backends, in memory full of NaN. Returns the outputs and caches. `seed`
/// determines all placements. Throws std::runtime_error if the results of the two runs differ in a bit, or if queued
/// runs with different inputs give other results than separate runs.
Results run_scheduled(const RandomCase& one, std::span<Backend* const> backends, uint64_t seed);

/// The difference from the results on `reference`; "" if there is none. An exception counts as a difference.
std::string check_scheduled(const RandomCase& one, std::span<Backend* const> backends, Device& reference,
                            uint64_t seed);

}  // namespace shoal::test
