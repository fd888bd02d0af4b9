#include "collectives/thresholds.h"

#include <map>
#include <nlohmann/json.hpp>

#include "base/cache_file.h"
#include "base/error.h"
#include "base/json_text.h"
#include "devices/device.h"

namespace shoal::collectives {
namespace {

constexpr int kVersion = 1;

constexpr const char* kVariable = "SHOAL_COMM_THRESHOLDS";
constexpr const char *kNcclFrom = "nccl_from_bytes", *kOneShotTo = "one_shot_to_bytes";

CacheFile own_file() {
  return cache_file(kVariable, "collectives.json");
}

/// The value of "meshes" in the file. An empty object if the file is missing or not valid.
nlohmann::json read_meshes() {
  const auto found = parse_json_or_nothing(read_cache_file(own_file()));
  const bool usable = found.is_object() && found.contains("version") && found["version"] == kVersion &&
                      found.contains("meshes") && found["meshes"].is_object();
  return usable ? found["meshes"] : nlohmann::json::object();
}

}  // namespace

std::filesystem::path thresholds_file() {
  return own_file().path;
}

std::string mesh_key(std::span<Device* const> ranks) {
  std::map<std::string, int> counts;
  for (const Device* rank : ranks) {
    std::string description = rank->description();
    // Removes ", part N", so that all virtual devices of one GPU have the same description.
    if (const size_t part = description.rfind(", part "); part != std::string::npos) description.resize(part);
    ++counts[description];
  }
  std::string key;
  for (const auto& [description, count] : counts) {
    key += fmt::format("{}{} x {}", key.empty() ? "" : "; ", description, count);
  }
  return key;
}

std::optional<Thresholds> find_thresholds(std::span<Device* const> ranks) {
  const nlohmann::json meshes = read_meshes();
  const auto mesh = meshes.find(mesh_key(ranks));
  if (mesh == meshes.end() || !mesh->is_object()) return std::nullopt;
  const auto measured = [&](const char* name) -> std::optional<size_t> {
    const auto bytes = mesh->find(name);
    if (bytes == mesh->end() || !bytes->is_number_unsigned()) return std::nullopt;
    return bytes->get<size_t>();
  };
  const Thresholds found{measured(kNcclFrom), measured(kOneShotTo)};
  return found == Thresholds() ? std::nullopt : std::optional(found);
}

Thresholds thresholds_or_found(const std::optional<Thresholds>& given, std::span<Device* const> ranks) {
  return given ? *given : find_thresholds(ranks).value_or(Thresholds());
}

void check_thresholds_file() {
  check_cache_file(own_file());
}

void save_thresholds(std::span<Device* const> ranks, const Thresholds& thresholds) {
  nlohmann::json meshes = read_meshes();
  nlohmann::json entry = nlohmann::json::object();
  if (thresholds.nccl_from_bytes) entry[kNcclFrom] = *thresholds.nccl_from_bytes;
  if (thresholds.one_shot_to_bytes) entry[kOneShotTo] = *thresholds.one_shot_to_bytes;
  meshes[mesh_key(ranks)] = entry;
  const nlohmann::json all{{"version", kVersion}, {"meshes", meshes}};
  write_cache_file(own_file(), all.dump(2) + "\n");
}

}  // namespace shoal::collectives
