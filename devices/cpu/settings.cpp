#include "devices/cpu/settings.h"

#include <fmt/format.h>

#include <charconv>
#include <cmath>
#include <cstdlib>

#include "base/error.h"
#include "base/text.h"
#include "devices/cpu/cpu_device.h"
#include "devices/cpu/slowdown.h"

namespace shoal::cpu {
namespace {

/// The unparsed text of a setting.
struct Text {
  std::string origin;  ///< prefix of error messages
  std::optional<std::string> value;
  char separator = ',';
};

/// Returns the text of the parameter. If `params` omits the parameter, returns the text of the environment variable. An
/// empty variable counts as unset.
Text find(const Params& params, std::string_view key, const char* variable) {
  if (params.has(key)) return {fmt::format("CPU: parameter '{}'", key), params.text(key), '+'};
  const char* value = std::getenv(variable);
  const bool set = value != nullptr && *value != '\0';
  return {fmt::format("environment variable {}", variable), set ? std::optional<std::string>(value) : std::nullopt};
}

double parse_factor(std::string_view what, std::string_view text) {
  double value = 0;
  const auto [end, error] = std::from_chars(text.data(), text.data() + text.size(), value);
  const bool whole = error == std::errc() && end == text.data() + text.size() && std::isfinite(value);
  require<InvalidArgument>(whole && value >= 1 && value <= kMaxSlowdown, "{} must be a number from 1 to {}, got '{}'",
                           what, kMaxSlowdown, text);
  return value;
}

/// Parses a list. For each number, calls parse(name for messages, text, whether the list contains several numbers).
template <class Number, class Parse>
PerDevice<Number> parse_list(const Text& text, Parse parse) {
  PerDevice<Number> list{text.origin, {}};
  if (!text.value) return list;
  const std::string_view all = *text.value;
  const bool several = all.find(text.separator) != std::string_view::npos;
  for (size_t begin = 0; begin <= all.size();) {
    const size_t end = std::min(all.find(text.separator, begin), all.size());
    const std::string what = several ? fmt::format("{}: number {}", text.origin, list.numbers.size() + 1) : text.origin;
    list.numbers.push_back(parse(what, all.substr(begin, end - begin), several));
    begin = end + 1;
  }
  return list;
}

/// Checks the length of a list. If `devices` is 0, no setting has given the number of devices, and the list sets this
/// number.
template <class Number>
void check_count(const PerDevice<Number>& list, int& devices) {
  const int count = static_cast<int>(list.numbers.size());
  if (!list.one_each()) return;
  if (devices == 0) devices = count;
  require<InvalidArgument>(count == devices, "{} has {} numbers for {} CPU device{}: give one number or one per device",
                           list.origin, count, devices, devices == 1 ? "" : "s");
}

}  // namespace

Settings read_settings(std::string_view text) {
  const Params params("CPU", text, {"devices", "threads", "slowdown", "max_size", "memory"});
  Settings settings;
  const Text devices = find(params, "devices", "SHOAL_CPU_DEVICES");
  if (devices.value) {
    settings.devices = static_cast<int>(parse_integer(devices.origin, *devices.value, 0, kMaxDevices));
  }
  settings.threads = parse_list<int>(find(params, "threads", "SHOAL_CPU_THREADS"),
                                     [](const std::string& what, std::string_view number, bool several) {
                                       return static_cast<int>(parse_integer(what, number, several, kMaxThreads));
                                     });
  settings.slowdown = parse_list<double>(
      find(params, "slowdown", "SHOAL_CPU_SLOWDOWN"),
      [](const std::string& what, std::string_view number, bool) { return parse_factor(what, number); });
  check_count(settings.threads, settings.devices);
  check_count(settings.slowdown, settings.devices);
  settings.limits.max_size = params.bytes("max_size", settings.limits.max_size);
  if (params.has("memory")) settings.limits.memory = params.bytes("memory", 0);
  return settings;
}

int devices_from_environment() {
  return read_settings({}).devices;
}

}  // namespace shoal::cpu
