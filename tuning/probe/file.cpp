#include "tuning/probe/file.h"

#include <fmt/chrono.h>
#include <fmt/format.h>

#include <algorithm>
#include <ctime>
#include <nlohmann/json.hpp>

#include "base/cache_file.h"
#include "base/error.h"
#include "base/json_text.h"
#include "collectives/communicator.h"
#include "machine/sets.h"
#include "tuning/probe/probe.h"

namespace shoal::probe {
namespace {

constexpr int kVersion = 1;
constexpr const char* kVariable = "SHOAL_MACHINE_FILE";
/// Maximum number of machines in the file. If the file is full, a new machine replaces the oldest machine.
constexpr size_t kMost = 16;

using Json = nlohmann::json;

CacheFile own_file() {
  return cache_file(kVariable, "machine.json");
}

/// The entries of the file, latest entry first. Empty if the file is missing or has another format.
std::vector<Json> read_entries() {
  const Json found = parse_json_or_nothing(read_cache_file(own_file()));
  const bool usable = found.is_object() && found.contains("version") && found["version"] == kVersion &&
                      found.contains("machines") && found["machines"].is_array();
  return usable ? found["machines"].get<std::vector<Json>>() : std::vector<Json>();
}

std::string text_of(const Json& entry, const char* key) {
  const bool is_text = entry.is_object() && entry.contains(key) && entry[key].is_string();
  return is_text ? entry[key].get<std::string>() : "";
}

/// The places of all devices, by device name. The result is not a JSON object if an older program wrote the entry in
/// another format.
Json places_of(const Json& entry) {
  return entry.is_object() && entry.contains("places") ? entry["places"] : Json();
}

Json places_of(const MachineModel& machine) {
  Json places = Json::object();
  for (const DeviceModel& model : machine.devices) {
    const Device* device = Registry::instance().find_device(model.name);
    places[model.name] = device != nullptr ? probe_place(*device) : "";
  }
  return places;
}

/// A key for the implementation of collectives and the dtype of their messages (SHOAL_COMM_WIRE). Empty for fewer than
/// two devices.
std::string collectives_of(size_t devices, std::string_view comm) {
  if (devices < 2) return "";
  return fmt::format("{} {}", collectives::implementation_or_default(comm), name_of(collectives::default_wire()));
}

/// Entries whose measurements used these devices in their current places and this implementation of collectives. The
/// latest entry comes first.
std::vector<Json> entries_for(std::span<Device* const> devices, std::string_view comm) {
  std::vector<Json> entries = read_entries();
  const std::string collectives = collectives_of(devices.size(), comm);
  std::erase_if(entries, [&](const Json& entry) {
    const Json places = places_of(entry);
    const auto is_there = [&](const Device* device) {
      return places.contains(device->name()) && places[device->name()] == probe_place(*device);
    };
    const bool same_collectives = devices.size() < 2 || text_of(entry, "collectives") == collectives;
    return !same_collectives || !std::all_of(devices.begin(), devices.end(), is_there);
  });
  return entries;
}

/// The machine of an entry; nullopt if the entry is damaged or another program version wrote it.
std::optional<MeasuredMachine> read_entry(const Json& entry) {
  if (text_of(entry, "program") != SHOAL_VERSION || !entry.contains("machine")) return std::nullopt;
  try {
    return MeasuredMachine{machine::parse_machine(entry["machine"].dump(), machine_file().string()),
                           text_of(entry, "measured")};
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

/// Whether an entry is no longer needed. This is true if the latest probe measured the same devices and types, or if
/// the entry is damaged. Entries of other program versions stay in the file, because these versions may still be in
/// use.
bool is_superseded(const Json& entry, const Json& latest, const MachineModel& machine) {
  const std::optional<MeasuredMachine> old = read_entry(entry);
  if (!old) return text_of(entry, "program") == SHOAL_VERSION;
  const auto names = [](const DeviceModel& device) {
    std::vector<std::string> names{device.name, device.identity};
    for (const auto& [dtype, product] : device.products) names.push_back(dtype);
    return names;
  };
  return entry["places"] == latest["places"] && entry["collectives"] == latest["collectives"] &&
         std::ranges::equal(old->machine.devices, machine.devices, {}, names, names);
}

std::string now() {
  return fmt::format("{:%Y-%m-%d %H:%M:%S} UTC", fmt::gmtime(std::time(nullptr)));
}

}  // namespace

std::filesystem::path machine_file() {
  return own_file().path;
}

std::optional<MeasuredMachine> find_measured(std::span<Device* const> devices, int threads,
                                             std::span<const DType> dtypes, std::string_view comm) {
  // A probe measures only the dtypes that a device supports.
  std::vector<std::vector<DType>> wanted;
  for (const Device* device : devices) wanted.push_back(supported_dtypes(*device, dtypes));
  for (const Json& entry : entries_for(devices, comm)) {
    const std::optional<MeasuredMachine> found = read_entry(entry);
    if (!found) continue;
    std::vector<int> members;
    for (size_t i = 0; i < devices.size(); ++i) {
      const DeviceModel* model = find_device(found->machine, devices[i]->name(), probe_identity(*devices[i], threads));
      if (model != nullptr && has_products(*model, wanted[i])) members.push_back(found->machine.index(model->name));
    }
    // The entry must contain the collectives of these devices, or measured sets that are sufficient to estimate these
    // collectives.
    if (members.size() == devices.size() && has_measured(found->machine, members)) return found;
  }
  return std::nullopt;
}

void check_machine_file() {
  check_cache_file(own_file());
}

std::string save_machine(const MachineModel& machine, std::string_view comm) {
  const std::string text = to_json(machine);
  machine::parse_machine(text, "the machine to be saved");  // throws if the new entry could not be read back
  const Json latest{{"program", SHOAL_VERSION},
                    {"measured", now()},
                    {"places", places_of(machine)},
                    {"collectives", collectives_of(machine.devices.size(), comm)},
                    {"machine", Json::parse(text)}};
  std::vector<Json> kept{latest};
  for (Json& entry : read_entries()) {
    if (kept.size() < kMost && !is_superseded(entry, latest, machine)) kept.push_back(std::move(entry));
  }
  const Json all{{"version", kVersion}, {"machines", kept}};
  write_cache_file(own_file(), all.dump(1) + "\n");
  return text_of(latest, "measured");
}

}  // namespace shoal::probe
