// What `shoal --version` prints.
#pragma once

#include <string>

namespace shoal::tools {

/// Version, commit, compiler, instruction sets of the CPU kernels, and whether CUDA devices can be had, a line each.
/// Loads the plug-ins that are found.
std::string version_text();
/// "shoal 0.1.0 (commit 1234abc)"
std::string version_line();

/// Of these the last: "yes, FILE (2 device(s))", or "no, " and why.
std::string cuda_text();

}  // namespace shoal::tools
