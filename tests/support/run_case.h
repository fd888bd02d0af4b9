// Runs a random case on one device and on a meta device and compares; shrinks cases that differ.
#pragma once

#include <functional>
#include <memory>
#include <span>
#include <string>
#include <vector>

#include "meta/meta.h"
#include "tests/support/case_leaves.h"

namespace shoal::test {

/// The case's split states on the first of these devices, as many as it has ranks. `one` must outlive it.
std::unique_ptr<meta::MetaDevice> meta_device(const RandomCase& one, std::span<Device* const> devices,
                                              const meta::RuleLookup& rules = meta::rule_text);

Results run_on_one(const RandomCase& one, Device& device);
/// Runs the plan twice, each time in memory full of NaN. Throws std::runtime_error when the second run differs in a
/// bit, or when ranks disagree about an output or a cache.
Results run_on_meta(const RandomCase& one, std::span<Device* const> devices,
                    const meta::RuleLookup& rules = meta::rule_text);

/// The same in each of several processes (thread_processes.h), of which the first has the first `ranks[0]` devices, and
/// so on; a case with fewer ranks leaves some without. `hosts`: where the processes are. Throws when the processes do
/// not all get the same bits.
Results run_on_processes(const RandomCase& one, std::span<Device* const> devices, std::span<const int> ranks,
                         const std::vector<std::string>& hosts);

/// Runs both and compares; an exception counts as a difference.
std::string check_case(const RandomCase& one, std::span<Device* const> devices,
                       const meta::RuleLookup& rules = meta::rule_text);

/// The smallest case found within 20 seconds that still fails: without outputs, nodes and split states that are not
/// needed for it, and with inputs in the place of nodes.
RandomCase shrink(RandomCase one, const std::function<bool(const RandomCase&)>& fails);

}  // namespace shoal::test
