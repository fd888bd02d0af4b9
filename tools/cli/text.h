// What reports have in common: shares, the time, the build, the machine.
#pragma once

#include <nlohmann/json.hpp>
#include <span>
#include <string>
#include <string_view>

#include "devices/device.h"

namespace shoal::tools {

/// Shares for a table: numbers with a point have three digits that count, "0.505986219,0.494013781" is "0.506,0.494".
/// The rest stays as it is.
std::string short_shares(std::string_view shares);
/// With A to Z for a to z.
std::string upper(std::string_view text);
/// "2025-03-01T12:00:00Z": now.
std::string utc_time();
/// Short hash of the commit that the program was built from, with "+" when files had been changed; "unknown" where the
/// build could not tell.
std::string build_commit();
/// Descriptions of the devices that are CPUs, or with `cpus` = false of all others: each once, as "a; b".
std::string describe(std::span<Device* const> devices, bool cpus);

/// Version, commit, compiler, instruction sets of the CPU kernels, and whether CUDA devices can be had, a line each.
/// Loads the plug-ins that are found.
std::string version_text();
/// "shoal 0.1.0 (commit 1234abc)"
std::string version_line();

/// Of these the last: "yes, FILE (2 device(s))", or "no, " and why.
std::string cuda_text();

}  // namespace shoal::tools
