// Text that several reports contain: shares of devices, times, the build and the machine.
#pragma once

#include <nlohmann/json.hpp>
#include <span>
#include <string>
#include <string_view>

#include "devices/device.h"

namespace shoal::tools {

/// Shares as printed in tables. Numbers with a decimal point are rounded to three significant digits:
/// "0.505986219,0.494013781" becomes "0.506,0.494". Other text is unchanged.
std::string short_shares(std::string_view shares);
/// Converts the letters a to z to upper case.
std::string upper(std::string_view text);
/// The current time, such as "2025-03-01T12:00:00Z".
std::string utc_time();
/// Short hash of the commit that was built, with "+" if files had uncommitted changes. Returns "unknown" if the build
/// could not determine the commit.
std::string build_commit();
/// Descriptions of all CPU devices (if `cpus`) or of all other devices, without duplicates: "a; b".
std::string describe(std::span<Device* const> devices, bool cpus);

/// Version, commit, compiler, instruction sets of the CPU kernels, and availability of CUDA devices, one line each.
/// Loads the plug-ins that are found automatically.
std::string version_text();
/// Version and commit, such as "shoal 0.1.0 (commit 1234abc)".
std::string version_line();

/// The CUDA line of version_text(): "yes, FILE (2 device(s))", or "no, " and the reason.
std::string cuda_text();

}  // namespace shoal::tools
