#include "tools/cli/environment.h"

#include <fmt/format.h>
#include <unistd.h>

#include <algorithm>
#include <array>
#include <cstring>
#include <string_view>

#include "tools/cli/arguments.h"
#include "tools/cli/program.h"

namespace shoal::tools {
namespace {

/// Variables that users set (CONTRIBUTING.md, Environment variables).
constexpr std::array<std::string_view, 16> kVariables{
    "SHOAL_COMM",           "SHOAL_COMM_THRESHOLDS", "SHOAL_COMM_TIMEOUT", "SHOAL_COMM_WIRE",
    "SHOAL_CPU_DEVICES",    "SHOAL_CPU_ISA",         "SHOAL_CPU_SLOWDOWN", "SHOAL_CPU_THREADS",
    "SHOAL_MACHINE_FILE",   "SHOAL_PLUGIN_PATH",     "SHOAL_NCCL_LIBRARY", "SHOAL_CUDA_DEVICES_PER_GPU",
    "SHOAL_CUBLAS_LIBRARY", "SHOAL_PYTHON",          "SHOAL_CUDA_OFF",     "SHOAL_API_KEY"};

/// Prefixes of variables that only scripts, tests and the emulator read.
constexpr std::array<std::string_view, 8> kOfTests{"SHOAL_TEST_",      "SHOAL_EMULATED_", "SHOAL_PROPERTY_",
                                                   "SHOAL_SOAK_",      "SHOAL_STANDIN_",  "SHOAL_PROGRAM",
                                                   "SHOAL_MODELS_DIR", "SHOAL_PEERS_"};

}  // namespace

std::vector<std::string> known_variables() {
  return {kVariables.begin(), kVariables.end()};
}

bool is_known_variable(const std::string& name) {
  return std::find(kVariables.begin(), kVariables.end(), name) != kVariables.end() ||
         std::any_of(kOfTests.begin(), kOfTests.end(), [&](std::string_view start) { return name.starts_with(start); });
}

void warn_of_unknown_variables() {
  for (const char* const* entry = environ; *entry != nullptr; ++entry) {
    const std::string name(*entry, std::strcspn(*entry, "="));
    if (!name.starts_with("SHOAL_") || is_known_variable(name)) continue;
    warn(fmt::format("unknown environment variable {}{} has no effect; check its name", name,
                     did_you_mean(name, known_variables())));
  }
}

}  // namespace shoal::tools
