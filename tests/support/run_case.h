// Runs a random case on one device and on a meta device and compares the results; shrinks cases that differ.
#pragma once

#include <functional>
#include <memory>
#include <span>
#include <string>
#include <vector>

#include "meta/meta.h"
#include "tests/support/case_leaves.h"

namespace shoal::test {

/// A meta device over the first `one.ranks` devices of `devices`, with the case's split states. `one` must outlive the
/// meta device.
std::unique_ptr<meta::MetaDevice> meta_device(const RandomCase& one, std::span<Device* const> devices,
                                              const meta::RuleLookup& rules = meta::rule_text);

Results run_on_one(const RandomCase& one, Device& device);
/// Runs the case on a meta device twice with the same plan, each time in memory full of NaN. Throws std::runtime_error
/// if the results of the runs differ in a bit, or if ranks disagree about an output or a cache.
Results run_on_meta(const RandomCase& one, std::span<Device* const> devices,
                    const meta::RuleLookup& rules = meta::rule_text);

/// As run_on_meta(), but in each of several processes (thread_processes.h). Process i has `ranks[i]` devices; in a case
/// with fewer ranks some processes have none. `hosts` names each process's host. Throws if the processes do not all get
/// the same bits.
Results run_on_processes(const RandomCase& one, std::span<Device* const> devices, std::span<const int> ranks,
                         const std::vector<std::string>& hosts);

/// Runs the case on one device and on a meta device. Returns the difference, or "" if there is none. An exception
/// counts as a difference.
std::string check_case(const RandomCase& one, std::span<Device* const> devices,
                       const meta::RuleLookup& rules = meta::rule_text);

/// The smallest failing case found within 20 seconds. Removes outputs, nodes and split states, and replaces nodes by
/// inputs, as long as the case still fails.
RandomCase shrink(RandomCase one, const std::function<bool(const RandomCase&)>& fails);

}  // namespace shoal::test
