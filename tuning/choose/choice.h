// How a model runs on devices, as one plain value: flags fix parts of it, the search completes it (chooser.h), and
// other processes receive it as JSON.
#pragma once

#include <cstdint>
#include <optional>
#include <span>
#include <string>
#include <vector>

#include "models/place/placement.h"
#include "models/session/session.h"

namespace shoal::tuning {

/// The part of a model that stays on the host next to the devices; as PlacementOptions has it.
struct HostPart {
  int64_t device_layers = -1;
  int64_t expert_layers = 0;
  bool empty() const { return device_layers < 0 && expert_layers == 0; }
  std::string flags() const;  ///< "-ngl 40 -ncmoe 60"; "" if it is empty
  bool operator==(const HostPart&) const = default;
};

struct Choice {
  models::DeviceGroups groups;  ///< as Placement takes them
  models::SplitMode mode = models::SplitMode::kTensor;
  std::vector<double> shares = {};                  ///< of the devices (kTensor) or groups (kLayer); empty: even
  HostPart host = {};                               ///< empty: as the options of the placement say
  int64_t context = 0;                              ///< tokens; 0: as the options of the session say
  std::optional<models::ExpertSplit> experts = {};  ///< nullopt: the faster way (ways.h)
  std::optional<models::LatentSplit> latent = {};
  std::optional<DType> cache_k = {}, cache_v = {};  ///< nullopt: as the options of the session say

  std::vector<Device*> devices() const;
  size_t device_count() const { return devices().size(); }
  /// Each has one share: devices by themselves (kTensor) or groups (kLayer).
  models::DeviceGroups sharers() const;
  std::string devices_text() const;  ///< "CPU0,CPU1", "CPU0+CPU1,CPU2"
  std::string ratio() const;         ///< as parse_ratio reads it, "3,1"; empty: even
  std::string name() const;          ///< "CPU0", "CPU0,CPU1 tensor 3,1", "CPU0,CPU1 layer even", "CUDA0 -ncmoe 8"
  bool operator==(const Choice&) const = default;
};

/// Dimensions of a choice that a search may change; compare() also frees groups and mode.
struct Free {
  bool shares = false;
  bool host = false;                      ///< a part of the model may stay on the host if the devices have no room
  bool context = false;                   ///< may shrink
  bool cache_k = false, cache_v = false;  ///< the widest types that fit
};

/// The part of a choice that other processes lack; devices and mode are the same flags there.
std::string to_json(const Choice& choice);
/// `known` with the rest of a choice of another process. Throws CommError if it has another number of devices.
Choice with_json(Choice known, const std::string& json);

/// All devices act as one.
Choice acting_as_one(std::vector<Device*> devices);
/// Each device has some of the layers.
Choice layers_of(std::span<Device* const> devices);

/// "3,1" for {0.75, 0.25}: whole numbers if their sum is at most 999, else decimals.
std::string ratio_text(std::span<const double> shares);
/// The same shares with a sum of 1; even ones if all are 0.
std::vector<double> normalised(std::vector<double> shares);
std::vector<double> even_shares(size_t count);

/// The options for a choice's Placement; ways that are not decided stay.
models::PlacementOptions placement_options(const Choice& choice, models::PlacementOptions options);
/// The options for a choice's session; a context and types that are not decided stay.
models::SessionOptions session_options(const Choice& choice, models::SessionOptions options);
/// The same Placement.
bool are_placed_alike(const Choice& one, Choice other);

/// Names the placement of all weights and caches: two ratios that lead to the same split have the same key.
std::string split_key(const models::Model& model, const models::Placement& placement);

}  // namespace shoal::tuning
