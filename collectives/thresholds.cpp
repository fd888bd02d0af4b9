#include "collectives/thresholds.h"

#include <unistd.h>

#include <cstdlib>
#include <fstream>
#include <map>
#include <nlohmann/json.hpp>

#include "devices/device.h"
#include "graph/error.h"

namespace shoal::collectives {
namespace {

constexpr int kVersion = 1;

std::string variable(const char* name) {
  const char* text = std::getenv(name);
  return text != nullptr ? text : "";
}

/// The meshes of the file, or an empty object.
nlohmann::json read_meshes() {
  std::ifstream file(thresholds_file());
  const auto found = nlohmann::json::parse(file, nullptr, false);
  const bool usable = found.is_object() && found.value("version", 0) == kVersion && found.contains("meshes") &&
                      found["meshes"].is_object();
  return usable ? found["meshes"] : nlohmann::json::object();
}

}  // namespace

std::filesystem::path thresholds_file() {
  if (const std::string own = variable("SHOAL_COMM_THRESHOLDS"); !own.empty()) return own;
  if (const std::string cache = variable("XDG_CACHE_HOME"); !cache.empty()) return cache + "/shoal/collectives.json";
  return variable("HOME") + "/.cache/shoal/collectives.json";
}

std::string mesh_key(std::span<Backend* const> ranks) {
  std::map<std::string, int> counts;
  for (const Backend* rank : ranks) {
    std::string description = rank->device().description();
    // Parts of one GPU are alike.
    if (const size_t part = description.rfind(", part "); part != std::string::npos) description.resize(part);
    ++counts[description];
  }
  std::string key;
  for (const auto& [description, count] : counts) {
    key += fmt::format("{}{} x {}", key.empty() ? "" : "; ", description, count);
  }
  return key;
}

std::optional<Thresholds> find_thresholds(std::span<Backend* const> ranks) {
  const nlohmann::json meshes = read_meshes();
  const auto mesh = meshes.find(mesh_key(ranks));
  if (mesh == meshes.end() || !mesh->is_object()) return std::nullopt;
  const auto bytes = mesh->find("nccl_from_bytes");
  if (bytes == mesh->end() || !bytes->is_number_unsigned()) return std::nullopt;
  return Thresholds{bytes->get<size_t>()};
}

// Written beside the file and moved there, so that nobody reads half of it.
void save_thresholds(std::span<Backend* const> ranks, const Thresholds& thresholds) {
  const std::filesystem::path path = thresholds_file();
  nlohmann::json meshes = read_meshes();
  meshes[mesh_key(ranks)] = {{"nccl_from_bytes", thresholds.nccl_from_bytes}};
  std::error_code error;
  if (path.has_parent_path()) std::filesystem::create_directories(path.parent_path(), error);
  const std::filesystem::path draft = path.string() + fmt::format(".{}", getpid());
  std::ofstream file(draft);
  file << nlohmann::json{{"version", kVersion}, {"meshes", meshes}}.dump(2) << '\n';
  file.close();
  if (file) std::filesystem::rename(draft, path, error);
  if (file && !error) return;
  std::filesystem::remove(draft, error);
  fail<DeviceError>("{}: cannot be written; name another file in SHOAL_COMM_THRESHOLDS", path.string());
}

}  // namespace shoal::collectives
