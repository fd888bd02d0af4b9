// `--tensor-split auto`: the shares predicted to be fastest (models/best_shares.h).
#pragma once

#include "models/best_shares.h"
#include "models/fit.h"
#include "tools/machine_choice.h"

namespace shoal::tools {

/// Where the ratio of `placement` is "auto": puts shares there, for generation, and says in a line on stderr which.
/// With one device, or one group of them with layers, there is nothing to choose. Probes the devices where that was not
/// done before, and shows a bar while it searches.
void choose_shares(const models::Model& model, const models::DeviceGroups& groups, models::PlacementOptions& placement,
                   const models::SessionOptions& session, const models::LoadOptions& load,
                   const std::string& machine_name = {}, models::Objective objective = models::Objective::kGeneration);

/// `--fit`: makes the context of `session` as large as memory allows, and says in a line on stderr what it did.
/// Throws DeviceError, with the remedies, where not even the smallest context fits.
void fit_context(const models::Model& model, const models::Placement& placement, models::SessionOptions& session,
                 const models::LoadOptions& load, const models::FitOptions& options);

}  // namespace shoal::tools
