// Measured message sizes at which the fastest implementation of a collective changes on this machine. `shoal bench-comm
// --calibrate` measures and saves these sizes. A communicator that chooses between implementations reads these sizes in
// its constructor. The file is JSON with one entry per mesh:
//
//   {"version": 1, "meshes": {
//     "NVIDIA H200, sm_90, 132 multiprocessors x 8": {"one_shot_to_bytes": 65536, "nccl_from_bytes": 524288}}}
//
// A value that is missing or not a number of bytes counts as not measured.
#pragma once

#include <cstddef>
#include <filesystem>
#include <optional>
#include <span>
#include <string>

#include "devices/device.h"

namespace shoal::collectives {

struct Thresholds {
  /// NCCL is faster than p2p for all messages of at least this many bytes.
  std::optional<size_t> nccl_from_bytes = {};
  /// In p2p, the one-shot all_reduce is faster than the two-shot all_reduce for messages of at most this many bytes.
  std::optional<size_t> one_shot_to_bytes = {};
  bool operator==(const Thresholds&) const = default;
};

/// The path in SHOAL_COMM_THRESHOLDS. The default path is shoal/collectives.json in the folder XDG_CACHE_HOME, or in
/// ~/.cache if XDG_CACHE_HOME is not set.
std::filesystem::path thresholds_file();
/// The key of a mesh in the file: a list of all different device descriptions, each with its number of devices.
std::string mesh_key(std::span<Device* const> ranks);
/// The measured thresholds of the mesh. nullopt if nothing was measured, or if the file is missing, unreadable or
/// damaged.
std::optional<Thresholds> find_thresholds(std::span<Device* const> ranks);
/// Returns `given` if it has a value. Otherwise returns the thresholds found for the mesh, or empty thresholds.
Thresholds thresholds_or_found(const std::optional<Thresholds>& given, std::span<Device* const> ranks);
/// Throws the errors that save_thresholds() would throw. Call check_thresholds_file() before a long measurement.
void check_thresholds_file();
/// Adds or replaces the mesh's entry in the file. Keeps all other entries. Throws the errors of write_cache_file().
void save_thresholds(std::span<Device* const> ranks, const Thresholds& thresholds);

}  // namespace shoal::collectives
