#include "tools/cli/text.h"

#include <fmt/format.h>
#include <fmt/ranges.h>

#include <algorithm>
#include <cstdlib>
#include <ctime>
#include <string_view>

#include "devices/device.h"
#include "tools/cli/device_names.h"

namespace shoal::tools {
namespace {

/// Rounds a decimal number to three significant digits, or to a whole number from 1000 on.
std::string short_number(const std::string& text) {
  const auto points = std::count(text.begin(), text.end(), '.');
  if (points != 1 || text.find_first_not_of("0123456789.") != std::string::npos) return text;
  const double value = std::strtod(text.c_str(), nullptr);
  return value < 1000 ? fmt::format("{:.3g}", value) : fmt::format("{:.0f}", value);
}

}  // namespace

std::string short_shares(std::string_view shares) {
  std::string out;
  for (size_t begin = 0; begin <= shares.size();) {
    const size_t end = std::min(shares.find_first_of(",:/", begin), shares.size());
    out += short_number(std::string(shares.substr(begin, end - begin)));
    if (end < shares.size()) out += shares[end];
    begin = end + 1;
  }
  return out;
}

std::string upper(std::string_view text) {
  std::string out(text);
  for (char& c : out) c = c >= 'a' && c <= 'z' ? static_cast<char>(c - 'a' + 'A') : c;
  return out;
}

std::string utc_time() {
  const std::time_t now = std::time(nullptr);
  std::tm parts{};
  gmtime_r(&now, &parts);
  char text[32];
  return std::string(text, std::strftime(text, sizeof(text), "%Y-%m-%dT%H:%M:%SZ", &parts));
}

std::string describe(std::span<Device* const> devices, bool cpus) {
  std::vector<std::string> seen;
  for (const Device* device : devices) {
    const std::string description = device->description();
    const bool is_new = std::find(seen.begin(), seen.end(), description) == seen.end();
    if ((device->type() == DeviceType::kCpu) == cpus && is_new) seen.push_back(description);
  }
  return fmt::format("{}", fmt::join(seen, "; "));
}

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
  return "no, plug-in libshoal-cuda.so was not found next to the program or in SHOAL_PLUGIN_PATH";
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
