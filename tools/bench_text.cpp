#include "tools/bench_text.h"

#include <algorithm>
#include <ctime>

namespace shoal::tools {
namespace {

std::string describe(std::span<Device* const> devices, bool cpus) {
  std::vector<std::string> seen;
  std::string text;
  for (const Device* device : devices) {
    const std::string description = device->description();
    if ((device->type() == DeviceType::kCpu) != cpus) continue;
    if (std::find(seen.begin(), seen.end(), description) != seen.end()) continue;
    seen.push_back(description);
    text += (text.empty() ? "" : "; ") + description;
  }
  return text;
}

}  // namespace

std::string csv_line(const std::vector<std::string>& cells) {
  std::string line;
  for (size_t i = 0; i < cells.size(); ++i) {
    if (i > 0) line += ',';
    if (cells[i].find_first_of(",\"\r\n") == std::string::npos) {
      line += cells[i];
      continue;
    }
    line += '"';
    for (const char c : cells[i]) line += c == '"' ? std::string("\"\"") : std::string(1, c);
    line += '"';
  }
  return line + "\n";
}

std::string csv_cell(const nlohmann::ordered_json& value) {
  if (value.is_null()) return "";
  return value.is_string() ? value.get<std::string>()
                           : value.dump(-1, ' ', false, nlohmann::ordered_json::error_handler_t::replace);
}

std::string utc_time() {
  const std::time_t now = std::time(nullptr);
  std::tm parts{};
  gmtime_r(&now, &parts);
  char text[32];
  return std::string(text, std::strftime(text, sizeof(text), "%Y-%m-%dT%H:%M:%SZ", &parts));
}

std::string describe_cpus(std::span<Device* const> devices) {
  return describe(devices, true);
}

std::string describe_others(std::span<Device* const> devices) {
  return describe(devices, false);
}

}  // namespace shoal::tools
