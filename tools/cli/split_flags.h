// Flags for how devices divide a model: -sm --expert-split --latent-split.
#pragma once

#include <CLI/CLI.hpp>

#include <optional>

#include "models/place/placement.h"
#include "tuning/choose/ways.h"

namespace shoal::tools {

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

}  // namespace shoal::tools
