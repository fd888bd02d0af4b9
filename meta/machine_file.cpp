#include "meta/machine_file.h"

#include <fmt/chrono.h>
#include <fmt/format.h>

#include <algorithm>
#include <ctime>
#include <fstream>
#include <nlohmann/json.hpp>
#include <numeric>

#include "devices/cache_file.h"
#include "graph/error.h"
#include "meta/probe.h"

namespace shoal::meta {
namespace {

constexpr int kVersion = 1;
constexpr const char* kVariable = "SHOAL_MACHINE_FILE";
/// Machines that are kept; the oldest go.
constexpr size_t kMost = 32;

using Json = nlohmann::json;

/// The file's machines as they are written, the latest first; empty where there is no file of ours.
std::vector<Json> read_entries() {
  std::ifstream file(machine_file());
  const Json found = Json::parse(file, nullptr, false);
  const bool usable = found.is_object() && found.contains("version") && found["version"] == kVersion &&
                      found.contains("machines") && found["machines"].is_array();
  return usable ? found["machines"].get<std::vector<Json>>() : std::vector<Json>();
}

std::string text_of(const Json& entry, const char* key) {
  const bool is_text = entry.is_object() && entry.contains(key) && entry[key].is_string();
  return is_text ? entry[key].get<std::string>() : "";
}

/// nullopt for one of another program version, or one that is damaged.
std::optional<MeasuredMachine> read_entry(const Json& entry) {
  if (text_of(entry, "program") != SHOAL_VERSION || !entry.contains("machine")) return std::nullopt;
  try {
    return MeasuredMachine{parse_machine(entry["machine"].dump(), machine_file().string()), text_of(entry, "measured")};
  } catch (const std::exception&) {
    return std::nullopt;
  }
}

const DeviceModel* find_device(const MachineModel& machine, const std::string& name, const std::string& identity) {
  for (const DeviceModel& device : machine.devices) {
    if (device.name == name && device.identity == identity) return &device;
  }
  return nullptr;
}

bool has_products(const DeviceModel& device, std::span<const DType> dtypes) {
  return std::all_of(dtypes.begin(), dtypes.end(),
                     [&](DType dtype) { return device.products.contains(std::string(name_of(dtype))); });
}

/// Does `latest` have everything that `old` has?
bool replaces(const MachineModel& latest, const MachineModel& old) {
  return std::all_of(old.devices.begin(), old.devices.end(), [&](const DeviceModel& device) {
    const DeviceModel* again = find_device(latest, device.name, device.identity);
    return again != nullptr && std::all_of(device.products.begin(), device.products.end(), [&](const auto& product) {
             return again->products.contains(product.first);
           });
  });
}

std::string now() {
  return fmt::format("{:%Y-%m-%d %H:%M:%S} UTC", fmt::gmtime(std::time(nullptr)));
}

}  // namespace

std::filesystem::path machine_file() {
  return cache_file(kVariable, "machine.json");
}

std::optional<MeasuredMachine> find_measured(std::span<Device* const> devices, int threads,
                                             std::span<const DType> dtypes) {
  // What a device cannot do, no probe finds.
  std::vector<std::vector<DType>> wanted;
  for (const Device* device : devices) wanted.push_back(supported_dtypes(*device, dtypes));
  for (const Json& entry : read_entries()) {
    const std::optional<MeasuredMachine> found = read_entry(entry);
    if (!found) continue;
    const auto is_there = [&](size_t i) {
      const std::string identity = probe_identity(*devices[i], threads);
      const DeviceModel* model = find_device(found->machine, devices[i]->name(), identity);
      return model != nullptr && has_products(*model, wanted[i]);
    };
    std::vector<size_t> all(devices.size());
    std::iota(all.begin(), all.end(), size_t{0});
    if (std::all_of(all.begin(), all.end(), is_there)) return found;
  }
  return std::nullopt;
}

std::optional<MachineModel> find_machine(std::span<Device* const> devices, int threads, std::span<const DType> dtypes) {
  std::optional<MeasuredMachine> found = find_measured(devices, threads, dtypes);
  return found ? std::optional(std::move(found->machine)) : std::nullopt;
}

void save_machine(const MachineModel& machine) {
  const std::string text = to_json(machine);
  parse_machine(text, "the machine to be saved");  // what cannot be read must not be written
  std::vector<Json> kept{{{"program", SHOAL_VERSION}, {"measured", now()}, {"machine", Json::parse(text)}}};
  for (Json& entry : read_entries()) {
    const std::optional<MeasuredMachine> old = read_entry(entry);
    const bool useless = text_of(entry, "program") == SHOAL_VERSION && (!old || replaces(machine, old->machine));
    if (!useless && kept.size() < kMost) kept.push_back(std::move(entry));
  }
  const Json all{{"version", kVersion}, {"machines", kept}};
  write_cache_file(machine_file(), all.dump(1) + "\n", kVariable);
}

}  // namespace shoal::meta
