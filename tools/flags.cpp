#include "tools/flags.h"

#include <algorithm>
#include <cctype>
#include <charconv>
#include <cstdlib>
#include <limits>
#include <optional>
#include <thread>

#include "devices/cpu/cpu_device.h"
#include "devices/params.h"
#include "graph/error.h"

namespace shoal::tools {
namespace {

std::vector<std::string_view> split(std::string_view text) {
  std::vector<std::string_view> out;
  for (size_t begin = 0; begin <= text.size();) {
    size_t end = std::min(text.find(',', begin), text.size());
    out.push_back(text.substr(begin, end - begin));
    begin = end + 1;
  }
  return out;
}

/// 3 for "CPU3" in any case; nullopt for anything else.
std::optional<int> cpu_number(std::string_view name) {
  constexpr std::string_view kFamily = "CPU";
  if (name.size() <= kFamily.size()) return std::nullopt;
  for (size_t i = 0; i < kFamily.size(); ++i) {
    if (std::toupper(static_cast<unsigned char>(name[i])) != kFamily[i]) return std::nullopt;
  }
  int number = 0;
  auto [end, error] = std::from_chars(name.data() + kFamily.size(), name.data() + name.size(), number);
  if (error != std::errc() || end != name.data() + name.size()) return std::nullopt;
  return number;
}

/// Makes as many CPU devices as the names ask for, where nothing else says how many there are.
void provide_cpus(std::string_view names) {
  if (std::getenv("SHOAL_CPU_DEVICES")) return;
  int wanted = 0;
  for (std::string_view name : split(names)) wanted = std::max(wanted, cpu_number(name).value_or(-1) + 1);
  int cores = static_cast<int>(std::thread::hardware_concurrency());
  bool exists = Registry::instance().find_device(fmt::format("CPU{}", wanted - 1)) != nullptr;
  if (wanted > 1 && wanted <= cores && !exists) cpu::configure(fmt::format("devices={}", wanted));
}

/// A CPU device that could be had gets a message that says how.
void require_cpus(std::string_view names) {
  for (std::string_view name : split(names)) {
    std::optional<int> number = cpu_number(name);
    if (!number || Registry::instance().find_device(name)) continue;
    std::string known;
    for (const Device* device : Registry::instance().devices()) {
      known += (known.empty() ? "" : ", ") + device->name();
    }
    fail<InvalidArgument>("there is no device '{}'; there are: {}; SHOAL_CPU_DEVICES={} makes that many of the CPU",
                          name, known, *number + 1);
  }
}

DType parse_dtype(std::string_view flag, std::string_view name) {
  std::optional<DType> dtype = dtype_from_name(name);
  require<InvalidArgument>(dtype.has_value(), "{} {}: no such type; use f16, f32 or q8_0", flag, name);
  return *dtype;
}

}  // namespace

void ModelFlags::add_to(CLI::App& app) {
  app.add_option("-m,--model", path, "GGUF file")->required();
}

void DeviceFlags::add_to(CLI::App& app) {
  app.add_option("--devices", devices, "Devices that act as one, such as CPU0,CPU1 (-dev)")->capture_default_str();
  app.add_option("--tensor-split", ratio, "Share of each device, such as 3,1; default even (-ts)");
  app.add_option("-t,--threads", threads, "Threads of each CPU device; 0: its cores")
      ->capture_default_str()
      ->check(CLI::Range(0, 4096));
}

std::vector<Device*> DeviceFlags::find() const {
  provide_cpus(devices);
  require_cpus(devices);
  return Registry::instance().device_list(devices);
}

void ContextFlags::add_to(CLI::App& app) {
  app.add_option("-c,--ctx-size", context, "Tokens that fit into the KV cache; 0: as the model was trained")
      ->capture_default_str();
  app.add_option("-b,--batch-size", batch, "Most tokens computed at once, where it is less than -ub")->capture_default_str();
  app.add_option("--ubatch-size", ubatch, "Most tokens computed at once (-ub)")->capture_default_str();
  app.add_option("--cache-type-k", dtype_k, "Type of cached keys: f16, f32, q8_0 (-ctk)")->capture_default_str();
  app.add_option("--cache-type-v", dtype_v, "Type of cached values: f16, f32, q8_0 (-ctv)")->capture_default_str();
}

models::SessionOptions ContextFlags::session() const {
  models::SessionOptions options;
  options.context = context;
  options.batch = std::min(batch, ubatch);
  options.dtype_k = parse_dtype("--cache-type-k", dtype_k);
  options.dtype_v = parse_dtype("--cache-type-v", dtype_v);
  return options;
}

void OutputFlag::add_to(CLI::App& app) {
  app.add_option("--output", format, "text or json")->capture_default_str()->check(CLI::IsMember({"text", "json"}));
}

std::vector<int32_t> parse_ids(std::string_view flag, std::string_view text) {
  std::vector<int32_t> ids;
  for (std::string_view part : split(text)) {
    ids.push_back(static_cast<int32_t>(parse_integer(flag, part, 0, std::numeric_limits<int32_t>::max())));
  }
  return ids;
}

}  // namespace shoal::tools
