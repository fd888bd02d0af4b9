// Message sizes from which one implementation of collectives is faster than another, as measured on this machine.
// `shoal bench-comm --calibrate` writes them. Communicators that choose between implementations read them at
// construction. A JSON file with one entry per mesh:
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
  /// In p2p, one-shot all_reduce is faster than two-shot up to this many bytes.
  std::optional<size_t> one_shot_to_bytes = {};
  bool operator==(const Thresholds&) const = default;
};

/// The path in SHOAL_COMM_THRESHOLDS; by default shoal/collectives.json in XDG_CACHE_HOME, or else in ~/.cache.
std::filesystem::path thresholds_file();
/// The key of a mesh's entry: each different device description with the number of such devices.
std::string mesh_key(std::span<Device* const> ranks);
/// nullopt if nothing was measured for the mesh, or the file is missing, unreadable or damaged.
std::optional<Thresholds> find_thresholds(std::span<Device* const> ranks);
/// `given` if it has a value, or else the thresholds found for the mesh, or else empty thresholds.
Thresholds thresholds_or_found(const std::optional<Thresholds>& given, std::span<Device* const> ranks);
/// Throws the errors that save_thresholds() would throw. Call it before a long measurement.
void check_thresholds_file();
/// Adds or replaces the mesh's entry. Other entries stay. Throws the errors of write_cache_file().
void save_thresholds(std::span<Device* const> ranks, const Thresholds& thresholds);

}  // namespace shoal::collectives
