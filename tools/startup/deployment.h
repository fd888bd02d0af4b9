// Turns a command line into a model on devices. The commands run, chat, plan and bench share these steps:
//
//   Request          the model, and the settings that its flags ask for (tuning::Asked)
//   resolve()        finds the machine, makes the choice, one placement and one plan  ->  Deployment
//   load()           loads the weights, if the memory suffices for everything in the plan
//   start_engine()   starts the engine, which runs the graphs of the plan
//
// With the same flags and the same measurements of the machine, `shoal plan` prints the plan that `shoal run` runs.
#pragma once

#include <chrono>
#include <memory>
#include <optional>
#include <string>
#include <vector>

#include "models/engine/engine.h"
#include "models/place/placement.h"
#include "models/session/loader.h"
#include "models/session/model_plan.h"
#include "tools/cli/output.h"
#include "tools/cli/progress.h"
#include "tools/startup/machine_choice.h"
#include "tuning/choose/chooser.h"

namespace shoal::tools {

struct Request {
  std::unique_ptr<models::Model> model;
  tuning::Asked asked = {};
  std::string machine = {};    ///< name or file of a machine description; "" means this machine
  bool needs_figures = false;  ///< whether to probe devices that have no saved measurements
  bool starts_threads = true;  ///< whether to start the threads of the devices' backends
};

struct Deployment {
  std::unique_ptr<models::Placement> placement;  ///< destroyed last, because its devices own the model's memory
  std::unique_ptr<models::Model> model;
  tuning::Asked asked;                  ///< asked.fixed is the final choice
  tuning::Ways ways;                    ///< predicted times of the --expert-split and --latent-split modes
  std::optional<KnownMachine> machine;  ///< the machine of the plan; nullopt if it is unknown or not needed
  std::vector<std::unique_ptr<Backend>> backends;
  std::unique_ptr<models::ModelPlan> plan;  ///< nullptr after the engine has taken the plan
  std::unique_ptr<models::Engine> engine;
  std::chrono::duration<double> load_time{};  ///< duration of load(), which loads Model::weight_bytes() bytes
};

/// Returns callbacks that show the progress of a search in `bar` and stop the search on Ctrl-C.
tuning::Watch watch_of(ProgressBar& bar);

/// Finds the machine, chooses all settings that the request leaves free, places the model and makes the plan. Starts
/// the devices' threads if request.starts_threads is set. Prints the decisions on stderr. Throws DeviceError if a
/// device cannot start its threads. Throws DeviceError with remedies if even the smallest allowed context does not fit.
/// Throws Interrupted on Ctrl-C. With several processes, this call is collective. Process 0 chooses, and the other
/// processes receive its choice. Before the choice, the call throws CommError if the processes have different model
/// files.
Deployment resolve(Request request);

/// Loads the weights with a progress bar, and also calls `observer`. Throws DeviceError before loading if a device has
/// too little memory. Throws Interrupted on Ctrl-C, and the exceptions of `observer`.
void load(Deployment& deployment, const models::LoadProgress& observer = {});

/// Creates the engine of a loaded deployment from its plan and backends. asked.session must be a result of
/// models::engine_options(). The tokenizer may be nullptr. With several processes, the engine of process 0 leads the
/// runners of the other processes.
void start_engine(Deployment& deployment, const models::Tokenizer* tokenizer);

/// Every process except process 0 calls this function. The function resolves the request, loads the same model as
/// process 0, and follows the engine of process 0 until that engine ends.
void follow_leader(Request request);

}  // namespace shoal::tools
