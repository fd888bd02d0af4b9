// Flags for what stays on the host's CPU beside the devices: -ngl -ncmoe -cmoe -nkvo -ot --offload-batch.
#pragma once

#include <CLI/CLI.hpp>

#include <cstdint>
#include <string>
#include <vector>

#include "models/place/placement.h"

namespace shoal::tools {

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
