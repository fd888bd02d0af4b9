// A model ready to run on some devices: opened, checked to fit, loaded with a progress bar.
#pragma once

#include <memory>
#include <optional>

#include "models/place/placement.h"
#include "models/session/loader.h"
#include "models/session/session.h"
#include "tuning/fit.h"

namespace shoal::tools {

struct Engine {
  std::unique_ptr<models::Placement> placement;  // first, because the model's memory is its device's
  std::unique_ptr<models::Model> model;
  std::unique_ptr<models::Session> session;
};

/// Chooses shares where the ratio is "auto", and a smaller context where `fit` asks for it (auto_split.h). Throws
/// DeviceError before anything is loaded when a device has too little memory or cannot start its threads, and
/// Interrupted on Ctrl-C.
Engine load_engine(std::unique_ptr<models::Model> model, const models::DeviceGroups& devices,
                   const models::PlacementOptions& placement, const models::SessionOptions& session,
                   const models::LoadOptions& load, const std::optional<tuning::FitOptions>& fit = {});

}  // namespace shoal::tools
