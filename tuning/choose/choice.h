// How a model runs on devices, as a plain value. Flags fix some fields and the search fills in the rest (chooser.h).
// Other processes receive the value as JSON.
#pragma once

#include <cstdint>
#include <optional>
#include <span>
#include <string>
#include <vector>

#include "models/place/placement.h"
#include "models/session/session.h"

namespace shoal::tuning {

/// The part of the model that stays on the host. The fields mean the same as in PlacementOptions.
struct HostPart {
  int64_t device_layers = -1;
  int64_t expert_layers = 0;
  bool empty() const { return device_layers < 0 && expert_layers == 0; }
  std::string flags() const;  ///< "-ngl 40 -ncmoe 60"; "" if it is empty
  bool operator==(const HostPart&) const = default;
};

struct Choice {
  models::DeviceGroups groups;  ///< in the format of Placement
  models::SplitMode mode = models::SplitMode::kTensor;
  std::vector<double> shares = {};                  ///< one per device (kTensor) or group (kLayer); empty: even shares
  HostPart host = {};                               ///< empty: the placement options decide
  int64_t context = 0;                              ///< tokens; 0: the session options decide
  std::optional<models::ExpertSplit> experts = {};  ///< nullopt: the faster split (ways.h)
  std::optional<models::LatentSplit> latent = {};
  std::optional<DType> cache_k = {}, cache_v = {};  ///< nullopt: the session options decide

  std::vector<Device*> devices() const;
  size_t device_count() const { return devices().size(); }
  /// Devices (kTensor) or groups (kLayer), in the order of their shares: each element receives one share.
  models::DeviceGroups sharers() const;
  std::string devices_text() const;  ///< "CPU0,CPU1", "CPU0+CPU1,CPU2"
  std::string ratio() const;         ///< "3,1", in the format of parse_ratio(); "" for even shares
  std::string name() const;          ///< "CPU0", "CPU0,CPU1 tensor 3,1", "CPU0,CPU1 layer even", "CUDA0 -ncmoe 8"
  bool operator==(const Choice&) const = default;
};

/// Flags for the dimensions of a choice that a search may change. compare() also changes groups and mode.
struct Free {
  bool shares = false;
  bool host = false;                      ///< a part of the model may stay on the host if the devices lack memory
  bool context = false;                   ///< the context may shrink
  bool cache_k = false, cache_v = false;  ///< the search takes the widest types that fit
};

/// The fields that process 0 sends to other processes. Devices and mode are not sent, because all processes get the
/// same flags.
std::string to_json(const Choice& choice);
/// Returns `known` with the fields that another process sent. Throws CommError if the numbers of devices differ.
Choice with_json(Choice known, const std::string& json);

/// The choice in which all devices act as one.
Choice acting_as_one(std::vector<Device*> devices);
/// The choice in which the devices divide the layers.
Choice layers_of(std::span<Device* const> devices);

/// The shares as text: "3,1" for {0.75, 0.25}. Uses whole numbers if their sum is at most 999, otherwise decimals.
std::string ratio_text(std::span<const double> shares);
/// The shares scaled to a sum of 1; even shares if all are 0.
std::vector<double> normalised(std::vector<double> shares);
std::vector<double> even_shares(size_t count);

/// The placement options, with the fields that the choice decides.
models::PlacementOptions placement_options(const Choice& choice, models::PlacementOptions options);
/// The session options, with the fields that the choice decides.
models::SessionOptions session_options(const Choice& choice, models::SessionOptions options);
/// Whether both choices have the same Placement.
bool are_placed_alike(const Choice& one, Choice other);

/// A key for the placement of all weights and caches. Two ratios that split them equally have the same key.
std::string split_key(const models::Model& model, const models::Placement& placement);

}  // namespace shoal::tuning
