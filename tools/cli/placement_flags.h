// Flags that place the parts of a model on devices or on the host's CPU.
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
  /// Adds only --expert-split and --latent-split.
  void add_ways_to(CLI::App& app);
  /// Warns if --expert-split or --latent-split has no effect. `together`: the largest number of devices that act as one
  /// device.
  void warn_of_ways(const models::Model& model, int together) const;
};

/// Flags that keep parts of the model on the host's CPU: -ngl -ncmoe -cmoe -nkvo -ot --offload-batch
struct HostFlags {
  int64_t device_layers = -1;
  int64_t expert_layers = 0;
  bool experts = false;  ///< true: the experts of all layers stay on the host
  bool cache = false;
  std::vector<models::TensorOverride> overrides;
  int64_t offload_batch = 0;

  void add_to(CLI::App& app);
  void put_into(models::PlacementOptions& options) const;
  /// A flag of the command line that keeps parts of the model on the host, such as "-ngl 4"; "" if there is none.
  std::string given() const;
};

}  // namespace shoal::tools
