// Runs a random case on one device and on a meta device, and compares the results. Shrinks cases whose results differ.
#pragma once

#include <functional>
#include <memory>
#include <span>
#include <string>
#include <vector>

#include "meta/meta.h"
#include "tests/support/case_leaves.h"

namespace shoal::test {

/// Creates a meta device with the case's split states on the first `one.ranks` devices of `devices`. `one` must outlive
/// the meta device.
std::unique_ptr<meta::MetaDevice> meta_device(const RandomCase& one, std::span<Device* const> devices,
                                              const meta::RuleLookup& rules = meta::rule_text);

Results run_on_one(const RandomCase& one, Device& device);
/// Runs the case twice on a meta device, with one plan. Before each run, all memory is filled with NaN. Throws
/// std::runtime_error if the two runs give different bits, or if ranks disagree about an output or a cache.
Results run_on_meta(const RandomCase& one, std::span<Device* const> devices,
                    const meta::RuleLookup& rules = meta::rule_text);

/// Like run_on_meta(), but runs the case in several processes (thread_processes.h). Process i has `ranks[i]` devices.
/// If the case has fewer ranks than the sum of `ranks`, some devices are not used. `hosts` contains the host name of
/// each process. Throws if two processes get different bits.
Results run_on_processes(const RandomCase& one, std::span<Device* const> devices, std::span<const int> ranks,
                         const std::vector<std::string>& hosts);

/// Runs the case on one device and on a meta device. Returns the difference, or "" if there is none. An exception
/// counts as a difference.
std::string check_case(const RandomCase& one, std::span<Device* const> devices,
                       const meta::RuleLookup& rules = meta::rule_text);

/// Returns the smallest failing case that is found within 20 seconds. Removes outputs, nodes, split states and
/// constraints, and replaces nodes by inputs, as long as the case still fails.
RandomCase shrink(RandomCase one, const std::function<bool(const RandomCase&)>& fails);

}  // namespace shoal::test
