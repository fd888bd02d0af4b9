// Settings with which a model runs on devices, as a plain value. Flags fix some fields, and the search decides the
// other fields (chooser.h). Other processes receive the value as JSON.
#pragma once

#include <cstdint>
#include <optional>
#include <span>
#include <string>
#include <vector>

#include "models/place/placement.h"
#include "models/session/session.h"

namespace shoal::tuning {

/// The layers and experts that stay on the host. The fields mean the same as in PlacementOptions.
struct HostPart {
  int64_t device_layers = -1;
  int64_t expert_layers = 0;
  bool empty() const { return device_layers < 0 && expert_layers == 0; }
  std::string flags() const;  ///< such as "-ngl 40 -ncmoe 60"; "" if nothing stays on the host
  bool operator==(const HostPart&) const = default;
};

struct Choice {
  models::DeviceGroups groups;  ///< groups for the constructor of Placement
  models::SplitMode mode = models::SplitMode::kTensor;
  std::vector<double> shares = {};                  ///< one share per device (kTensor) or group (kLayer); empty: even
                                                    ///< shares
  HostPart host = {};                               ///< empty: the placement options decide
  int64_t context = 0;                              ///< number of tokens; 0: the session options decide
  std::optional<models::ExpertSplit> experts = {};  ///< nullopt: the search takes the faster split (ways.h)
  std::optional<models::LatentSplit> latent = {};
  std::optional<DType> cache_k = {}, cache_v = {};  ///< nullopt: the session options decide

  std::vector<Device*> devices() const;
  size_t device_count() const { return devices().size(); }
  /// Devices (kTensor) or groups (kLayer) that each receive one share, in the order of the shares.
  models::DeviceGroups sharers() const;
  std::string devices_text() const;  ///< such as "CPU0,CPU1" or "CPU0+CPU1,CPU2"
  std::string ratio() const;         ///< such as "3,1", in the format of parse_ratio(); "" for even shares
  std::string name() const;          ///< such as "CPU0", "CPU0,CPU1 tensor 3,1" or "CUDA0 -ncmoe 8"
  bool operator==(const Choice&) const = default;
};

/// Fields of a choice that a search may change. compare() also changes groups and mode.
struct Free {
  bool shares = false;
  bool host = false;                      ///< whether layers and experts may stay on the host if the devices have too
                                          ///< little memory
  bool context = false;                   ///< whether the search may reduce the context
  bool cache_k = false, cache_v = false;  ///< whether the search selects the widest types that fit
};

/// The fields that process 0 sends to other processes. Process 0 does not send the devices and the mode, because all
/// processes get the same flags.
std::string to_json(const Choice& choice);
/// Returns `known` with the fields that process 0 sent. Throws CommError if the numbers of devices differ.
Choice with_json(Choice known, const std::string& json);

/// The choice in which all devices act as one.
Choice acting_as_one(std::vector<Device*> devices);
/// The choice in which each device runs some of the layers.
Choice layers_of(std::span<Device* const> devices);

/// The shares as text, such as "3,1" for {0.75, 0.25}. The text has whole numbers if their sum is at most 999,
/// otherwise decimals.
std::string ratio_text(std::span<const double> shares);
/// The shares scaled to a sum of 1. If all shares are 0, returns even shares.
std::vector<double> normalised(std::vector<double> shares);
std::vector<double> even_shares(size_t count);

/// Returns `options` with the placement fields of the choice.
models::PlacementOptions placement_options(const Choice& choice, models::PlacementOptions options);
/// Returns `options` with the session fields of the choice.
models::SessionOptions session_options(const Choice& choice, models::SessionOptions options);
/// Whether both choices result in the same Placement.
bool are_placed_alike(const Choice& one, Choice other);

/// A key for the placement of all weights and caches. Two ratios have the same key if they give every tensor the same
/// split.
std::string split_key(const models::Model& model, const models::Placement& placement);

}  // namespace shoal::tuning
