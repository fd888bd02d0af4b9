// `--tensor-split auto`: the shares predicted to be fastest (tuning/best_shares.h).
#pragma once

#include "tools/startup/machine_choice.h"
#include "tuning/best_shares.h"
#include "tuning/fit.h"

namespace shoal::tools {

/// What shares are to be good for.
struct ShareGoal {
  tuning::Objective objective = tuning::Objective::kGeneration;
  tuning::Workload workload = {};  ///< no more of it than fits into the context counts
  std::string machine = {};        ///< name or file, to take instead of a probe
  bool fit_follows = false;        ///< where no shares fit, choose_again() does after fit_context()
};

/// Where the ratio of `placement` is "auto": puts shares there, and says in a line on stderr which. With one device, or
/// one group of them with layers, there is nothing to choose. Probes the devices where that was not done before, and
/// shows a bar while it searches. False: no shares fit; those that lack least are taken.
bool choose_shares(const models::Model& model, const models::DeviceGroups& groups, models::PlacementOptions& placement,
                   const models::SessionOptions& session, const models::LoadOptions& load, const ShareGoal& goal = {});

/// Shares for the context that fits with those that choose_shares() could find when none did; those stay where others
/// do not leave the margin. True: `placement` is another one.
bool choose_again(const models::Model& model, const models::DeviceGroups& groups, models::PlacementOptions& placement,
                  const models::SessionOptions& session, const models::LoadOptions& load, ShareGoal goal,
                  const tuning::FitOptions& fit);

/// `--fit`: makes the context of `session` as large as memory allows, and says in a line on stderr what it did.
/// Where not even the smallest context fits and `options` requires it, throws DeviceError with the remedies; else that
/// one is taken, though it leaves less free than asked for.
void fit_context(const models::Model& model, const models::Placement& placement, models::SessionOptions& session,
                 const models::LoadOptions& load, const tuning::FitOptions& options);

}  // namespace shoal::tools
