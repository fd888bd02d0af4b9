// Predicts the performance of a model before it is loaded: tokens per second of prompts and generation, time in
// collectives, imbalance and memory. The inputs are a plan of the model (model_plan.h) and a model of the machine
// (machine/machine.h). The chooser (choose/chooser.h) compares choices by these predictions. The functions are pure,
// except that they query the free memory of devices.
//
//   a token       The splits of the schedule run one after another. Each split starts with its copies, followed by its
//                 steps (tuning/estimate.h).
//   a prompt      A Session divides the prompt into batches. Each batch reads the cache rows of the earlier batches. If
//                 layers are on several devices, batches overlap: device 0 begins the second batch when device 1 has
//                 the first batch (pipeline_time.h).
//   the disk      Every run reads mapped weights in the same order. If these weights are larger than the memory, the
//                 system drops each weight before the next run reads it. So every run reads all its weights from the
//                 disk.
#pragma once

#include <functional>
#include <optional>
#include <span>
#include <string>
#include <vector>

#include "machine/machine.h"
#include "models/session/model_plan.h"
#include "tuning/estimate.h"

namespace shoal::tuning {

/// The work to predict, as in `shoal bench -p prompt -n generate -d depth -np sequences`. All counts of tokens are for
/// one sequence.
struct Workload {
  int64_t prompt = 512;
  int64_t generate = 128;
  int64_t depth = 0;
  int64_t sequences = 1;  ///< number of sequences that run at the same time
  bool operator==(const Workload&) const = default;
};

/// Average number of cache rows that a token reads. The average is over the generated tokens. If there are no generated
/// tokens, the average is over the tokens of the prompt.
int64_t rows_seen(const Workload& workload);
/// Returns the workload with as many tokens as fit into the context, which all sequences share.
Workload clipped(Workload workload, int64_t context);

/// Prediction of one phase: a prompt, or the tokens of a generation.
struct PhasePrediction {
  double seconds = 0;                ///< time of all tokens
  double rate = 0;                   ///< tokens/s of all sequences together
  std::vector<std::string> devices;  ///< names of the devices, in the order of `ranks`
  std::vector<RankTime> ranks;       ///< time of one average token (generation) or of the whole prompt
  std::vector<CollectiveTime> collectives;
  double imbalance = 0;  ///< fraction of the time in which the average device waits for other devices
  double copies = 0;     ///< seconds of copies between devices that do not act as one
  double host = 0;       ///< seconds in which the host sends inputs, starts runs and receives results
  double disk = 0;       ///< seconds of reading weights that do not fit into memory; the `compute` time of the devices
                         ///< includes these seconds

  double communication() const;  ///< seconds of all collectives
  int64_t collective_count() const;
};

/// Called regularly during a prediction; may throw to stop the prediction.
using Poll = std::function<void()>;

/// Predicted times of a prompt and of a generation; nullopt for a phase without tokens. `plan` belongs to `session` and
/// the placement. The context of the plan must have room for all tokens of the work. Throws InvalidArgument if the
/// machine model does not contain a device or a dtype.
std::pair<std::optional<PhasePrediction>, std::optional<PhasePrediction>> predict(
    const models::Model& model, const models::Placement& placement, const models::ModelPlan& plan,
    const machine::MachineModel& machine, const models::SessionOptions& session, const Workload& work,
    const Poll& poll);

/// The phase whose time a search minimizes. kMix: the sum of the prompt time and the generation time.
enum class Objective : uint8_t { kGeneration, kPrompt, kMix };
std::string_view name_of(Objective objective);
/// Parses "generation", "prompt" or "mix". Other texts throw InvalidArgument with a list of these names.
Objective parse_objective(std::string_view text);
/// The phases of the work that the objective counts. If these phases have no tokens, returns all work.
Workload work_of(Workload work, Objective objective);
/// Throws InvalidArgument if a phase of the objective has no tokens.
void require_work(const Workload& workload, Objective objective);

}  // namespace shoal::tuning
