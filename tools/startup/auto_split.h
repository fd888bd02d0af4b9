// The machine that plans are made for, and `--tensor-split auto`: the shares predicted to be fastest there
// (tuning/best_shares.h).
#pragma once

#include <memory>
#include <optional>
#include <string>

#include "tools/startup/machine_choice.h"
#include "tuning/best_shares.h"
#include "tuning/fit.h"

namespace shoal::tools {

/// What shares are to be good for.
struct ShareGoal {
  tuning::Objective objective = tuning::Objective::kGeneration;
  tuning::Workload workload = {};  ///< no more of it than fits into the context counts
  std::string machine = {};        ///< name or file, to take instead of a probe
};

/// What flags say about a model on devices.
struct Request {
  std::unique_ptr<models::Model> model;
  models::DeviceGroups devices;
  models::PlacementOptions placement = {};
  models::SessionOptions session = {};
  models::LoadOptions load = {};
  std::optional<tuning::FitOptions> fit = {};
  ShareGoal goal = {};
  std::optional<KnownMachine> machine = {};  ///< choose_machine(); also in `placement`
  bool starts_threads = true;                ///< of the devices' backends
  std::string remark = {};                   ///< what fit_context() did, a line for stderr
  tuning::AskedWays ways = {};
};

/// Where several devices act as one: the machine that they are of, so that meta devices plan for its speeds and links.
/// What is kept of a probe, or the one that the goal names; where there is none, they plan with rough figures.
/// `required`: the devices are probed then. Throws what find_machine() and require_machine() throw.
void choose_machine(Request& request, bool required = false);

/// Where the ratio of the placement is "auto": puts shares there, and says in a line on stderr which. With one device,
/// or one group of them with layers, there is nothing to choose. Probes the devices where that was not done before, and
/// shows a bar while it searches. False: no shares fit; those that lack least are taken.
bool choose_shares(Request& request);

/// Shares for the context that fits with those that choose_shares() could find when none did; those stay where others
/// do not leave the margin. True: the placement is another one.
bool choose_again(Request& request);

/// `--fit`: makes the context of the session as large as memory allows, and puts a remark on it into the request. Gives
/// the plan for it, if it has made one. Where not even the smallest context fits and `fit` requires it, throws
/// DeviceError with the remedies; else that one is taken, though it leaves less free than asked for.
std::optional<models::ModelPlan> fit_context(Request& request, const models::Placement& placement);

}  // namespace shoal::tools
