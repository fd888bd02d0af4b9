// Flags that place the parts of a model: divided among devices, or on the host's CPU.
#pragma once

#include <CLI/CLI.hpp>

#include <cstdint>
#include <optional>
#include <string>
#include <vector>

#include "models/place/placement.h"
#include "tuning/choose/ways.h"

namespace shoal::tools {

/// -sm --expert-split --latent-split
struct SplitFlags {
  models::SplitMode mode = models::SplitMode::kTensor;
  bool mode_given = false;
  std::optional<models::ExpertSplit> experts = {};  ///< nullopt: auto
  std::optional<models::LatentSplit> latent = {};

  void add_to(CLI::App& app);
  /// --expert-split --latent-split alone.
  void add_ways_to(CLI::App& app);
  /// Warns of a way that was asked for and has no effect. `together`: most devices that act as one.
  void warn_of_ways(const models::Model& model, int together) const;
};

/// Kept on the host's CPU beside the devices: -ngl -ncmoe -cmoe -nkvo -ot --offload-batch
struct HostFlags {
  int64_t device_layers = -1;
  int64_t expert_layers = 0;
  bool experts = false;  ///< of all layers
  bool cache = false;
  std::vector<models::TensorOverride> overrides;
  int64_t offload_batch = 0;

  void add_to(CLI::App& app);
  void put_into(models::PlacementOptions& options) const;
  /// The first of them that was given, as "-ngl 4"; "": none, and everything is on the devices.
  std::string given() const;
};

}  // namespace shoal::tools
