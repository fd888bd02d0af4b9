// A random case on several backends of a scheduler: weights and caches, and some of the nodes, on random ones of them.
#pragma once

#include <memory>
#include <span>
#include <string>
#include <vector>

#include "sched/scheduler.h"
#include "tests/support/run_case.h"

namespace shoal::test {

/// Runs the case through a scheduler on these backends, twice, in memory full of NaN, and gives its outputs and caches.
/// Where things lie is a function of `seed`. Throws std::runtime_error when the second run differs in a bit, or when
/// runs with different inputs that are queued behind each other give something else than one by one.
Results run_scheduled(const RandomCase& one, std::span<Backend* const> backends, uint64_t seed);

/// "" or how that differs from the case on `reference`; an exception counts as a difference.
std::string check_scheduled(const RandomCase& one, std::span<Backend* const> backends, Device& reference,
                            uint64_t seed);

}  // namespace shoal::test
