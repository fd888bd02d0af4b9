// From a command line to a model on devices, in one straight pass that run, plan, bench and compare share:
//
//   Request          what the flags say: model, devices, placement, session, how to load
//   resolve()        the machine, shares for "auto", the placement, a context that fits, the plan  ->  Deployment
//   load()           weights, where there is room for all that the plan needs
//   start_session()  the session, which runs the plan's own graphs
//
// Nothing is placed or planned twice: `shoal plan` prints the plan that `shoal run` runs with the same flags and
// figures of the machine.
#pragma once

#include <chrono>
#include <memory>
#include <optional>
#include <vector>

#include "models/place/placement.h"
#include "models/session/model_plan.h"
#include "models/session/session.h"
#include "tools/startup/auto_split.h"
#include "tuning/fit.h"

namespace shoal::tools {

struct Deployment {
  std::unique_ptr<models::Placement> placement;  ///< first, because the model's memory is its devices'
  std::unique_ptr<models::Model> model;
  models::DeviceGroups devices;
  std::optional<KnownMachine> machine;  ///< that the plan is for, where several devices act as one and it is known
  models::PlacementOptions placement_options;  ///< with the shares that were chosen
  tuning::AskedWays asked_ways;
  tuning::Ways ways;  ///< of the placement
  models::SessionOptions session_options;      ///< with the context that fits
  models::LoadOptions load_options;            ///< as asked for; the plan says how weights are loaded
  std::vector<std::unique_ptr<Backend>> backends;
  std::unique_ptr<models::ModelPlan> plan;  ///< nullptr once the session has it
  std::unique_ptr<models::Session> session;
  std::chrono::duration<double> load_time{};  ///< of load(): Model::weight_bytes() in it

  /// The devices with their mode and shares.
  tuning::Candidate candidate() const;
};

/// Of several processes: what planning for meshes that are wholly in one of them depends on, which may have other GPUs
/// than the others, is known in all then. Collective; resolve() does it, too. Throws CommError.
void share_traits(const Request& request);

/// Finds the machine, chooses shares where the ratio is "auto", places the model, starts the devices' threads where the
/// request says so, makes the context smaller where it asks for that, and plans. Throws DeviceError when a device
/// cannot start its threads, and Interrupted on Ctrl-C.
///
/// Of several processes: collective. Process 0 chooses, the others take its choices; what cannot work together, another
/// file or version, is refused before. Throws CommError.
Deployment resolve(Request request);

/// Loads the weights with a progress bar. Throws DeviceError before anything is loaded when a device has too little
/// memory, and Interrupted on Ctrl-C.
void load(Deployment& deployment);

/// Makes the session of a loaded deployment, with its plan and backends. In process 0 of several it leads the others'.
void start_session(Deployment& deployment);

/// In every other process: resolves and loads the same, and follows the session of process 0 until that goes.
void follow_leader(Request request);

}  // namespace shoal::tools
