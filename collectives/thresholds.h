// Where one implementation of collectives becomes faster than another, as measured on this machine: `shoal bench-comm
// --calibrate` writes it, communicators that choose read it when they are made. A JSON file, one entry for each mesh:
//
//   {"version": 1, "meshes": {
//     "NVIDIA H200, sm_90, 132 multiprocessors x 8": {"one_shot_to_bytes": 65536, "nccl_from_bytes": 524288}}}
//
// What is missing, or no number of bytes, has not been measured.
#pragma once

#include <cstddef>
#include <filesystem>
#include <optional>
#include <span>
#include <string>

#include "devices/device.h"

namespace shoal::collectives {

struct Thresholds {
  /// All messages from this size on are faster by NCCL than by p2p, bytes.
  std::optional<size_t> nccl_from_bytes = {};
  /// All_reduces of p2p up to this size are faster in one shot than in two.
  std::optional<size_t> one_shot_to_bytes = {};
  bool operator==(const Thresholds&) const = default;
};

/// SHOAL_COMM_THRESHOLDS, or shoal/collectives.json in XDG_CACHE_HOME, or in ~/.cache.
std::filesystem::path thresholds_file();
/// What the entry of a mesh is named by: its devices' descriptions with how many there are of each.
std::string mesh_key(std::span<Device* const> ranks);
/// nullopt when nothing has been measured for the mesh. A file that cannot be read or is damaged counts as none.
std::optional<Thresholds> find_thresholds(std::span<Device* const> ranks);
/// Those given, or those found, or none.
Thresholds thresholds_or_found(const std::optional<Thresholds>& given, std::span<Device* const> ranks);
/// Throws what save_thresholds() would, before there is anything to be saved.
void check_thresholds_file();
/// Adds or replaces the entry; other entries stay. Throws the errors of write_cache_file().
void save_thresholds(std::span<Device* const> ranks, const Thresholds& thresholds);

}  // namespace shoal::collectives
