#include "tools/cli/version.h"

#include <fmt/format.h>

#include <string_view>

#include "devices/device.h"
#include "tools/cli/device_names.h"
#include "tools/cli/text.h"

namespace shoal::tools {
namespace {

#ifdef __clang__
constexpr const char* kCompiler = "Clang " __clang_version__;
#else
constexpr const char* kCompiler = "GCC " __VERSION__;
#endif

}  // namespace

std::string cuda_text() {
  Registry& registry = Registry::instance();
  const PluginReport report = registry.load_all();
  const BackendReg* family = registry.find_family("CUDA");
  if (family != nullptr) {
    const std::string lack = lack_of_devices(*family);
    const size_t count = family->devices().size();
    const std::string devices = count == 0 ? "no device" : fmt::format("{} device(s)", count);
    return fmt::format("yes, {} ({}{}{})", registry.file_of(*family).string(), devices, lack.empty() ? "" : ": ", lack);
  }
  for (const PluginReport::Skipped& plugin : report.skipped) {
    if (plugin.file.find("cuda") == std::string::npos) continue;
    return fmt::format("no, {} cannot be used: {}", plugin.file, plugin.reason);
  }
  return "no, there is no plug-in libshoal-cuda.so beside the program or in SHOAL_PLUGIN_PATH";
}

std::string version_line() {
  return fmt::format("shoal {} (commit {})", SHOAL_VERSION, build_commit());
}

std::string version_text() {
  const BackendReg* cpu = Registry::instance().find_family("CPU");
  const auto isa = [cpu](std::string_view name) { return cpu != nullptr ? feature_of(*cpu, name) : std::string(); };
  return fmt::format(
      "shoal {}\ncommit: {}\ncompiler: {}\nCPU instruction sets: built {}; usable here {}; used {}\nCUDA: {}",
      SHOAL_VERSION, build_commit(), kCompiler, isa("isa_built"), isa("isa_usable"), isa("isa"), cuda_text());
}

}  // namespace shoal::tools
