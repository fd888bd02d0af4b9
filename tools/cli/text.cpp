#include "tools/cli/text.h"

#include <fmt/format.h>
#include <fmt/ranges.h>

#include <algorithm>
#include <cstdlib>
#include <ctime>

namespace shoal::tools {
namespace {

/// A number whose decimals are more than a reader needs, with three digits that count.
std::string short_number(const std::string& text) {
  const auto points = std::count(text.begin(), text.end(), '.');
  if (points != 1 || text.find_first_not_of("0123456789.") != std::string::npos) return text;
  const double value = std::strtod(text.c_str(), nullptr);
  return value < 1000 ? fmt::format("{:.3g}", value) : fmt::format("{:.0f}", value);
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

}  // namespace shoal::tools
