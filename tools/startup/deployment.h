// From a command line to a model on devices, in one pass that run, chat, plan and bench share:
//
//   Request          the model, and what its flags ask for (tuning::Asked)
//   resolve()        the machine, the choice, one placement and one plan for it  ->  Deployment
//   load()           weights, if there is room for all that the plan needs
//   start_session()  the session, which runs the plan's own graphs
//
// `shoal plan` prints the plan that `shoal run` runs with the same flags and figures of the machine.
#pragma once

#include <chrono>
#include <memory>
#include <optional>
#include <string>
#include <vector>

#include "models/place/placement.h"
#include "models/session/model_plan.h"
#include "models/session/session.h"
#include "tools/cli/output.h"
#include "tools/cli/progress.h"
#include "tools/startup/machine_choice.h"
#include "tuning/choose/chooser.h"

namespace shoal::tools {

struct Request {
  std::unique_ptr<models::Model> model;
  tuning::Asked asked = {};
  std::string machine = {};    ///< name or file, to take instead of a probe
  bool needs_figures = false;  ///< devices without figures are probed
  bool starts_threads = true;  ///< of the devices' backends
};

struct Deployment {
  std::unique_ptr<models::Placement> placement;  ///< first, because the model's memory is its devices'
  std::unique_ptr<models::Model> model;
  tuning::Asked asked;                  ///< its fixed part is the choice that was found
  tuning::Ways ways;                    ///< the seconds that were compared
  std::optional<KnownMachine> machine;  ///< that the plan is for, if several devices act as one and it is known
  std::vector<std::unique_ptr<Backend>> backends;
  std::unique_ptr<models::ModelPlan> plan;  ///< nullptr once the session has it
  std::unique_ptr<models::Session> session;
  std::chrono::duration<double> load_time{};  ///< of load(): Model::weight_bytes() in it
};

/// Shows the progress of a search by the bar, and stops it on Ctrl-C.
tuning::Watch watch_of(ProgressBar& bar);

/// Finds the machine, decides everything that is free, places the model, starts the devices' threads if the request
/// says so, and plans; lines on stderr report the decisions. Throws DeviceError if a device cannot start its threads,
/// or, with remedies, if not even the smallest context fits that must; and Interrupted on Ctrl-C.
///
/// With several processes: collective. Process 0 chooses, the others receive its choice; processes with another file or
/// version are refused before. Throws CommError.
Deployment resolve(Request request);

/// Loads the weights with a progress bar. Throws DeviceError before anything is loaded when a device has too little
/// memory, and Interrupted on Ctrl-C.
void load(Deployment& deployment);

/// Makes the session of a loaded deployment, with its plan and backends. In process 0 of several it leads the others'.
void start_session(Deployment& deployment);

/// In every other process: resolves and loads the same, and follows the session of process 0 until that goes.
void follow_leader(Request request);

}  // namespace shoal::tools
