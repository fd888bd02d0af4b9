// What a model would do on some devices, before it is loaded: tokens per second of prompts and generation, time in
// collectives, imbalance and memory, from a plan of the model (model_plan.h) and a model of the machine
// (machine/machine.h). Pure functions of their arguments, except that devices are asked for their free memory.
// The chooser (choose/chooser.h) compares choices by them.
//
//   a token       every split of the schedule, one after the other: its copies, then its steps (tuning/estimate.h)
//   a prompt      its batches, as a Session divides it; each sees the rows of the cache that are filled by then.
//                 Where layers lie on several devices, batches overlap: device 0 begins the second one when device 1
//                 has the first (pipeline_time.h)
//   the disk      a run reads mapped weights in the same order as the run before. If they are larger than the memory,
//                 nothing of them is still there: all that a run reads comes from the disk, of experts those it uses
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

/// What is to be done: as `shoal bench -p prompt -n generate -d depth`.
struct Workload {
  int64_t prompt = 512;
  int64_t generate = 128;
  int64_t depth = 0;
  bool operator==(const Workload&) const = default;
};

/// Rows of a cache that its tokens see on the average: of those that are generated, or else of the prompt's.
int64_t rows_seen(const Workload& workload);
/// The same with no more tokens than fit into a context.
Workload clipped(Workload workload, int64_t context);

/// One kind of work: a prompt, or the tokens of a generation.
struct PhasePrediction {
  double seconds = 0;                ///< of all its tokens
  double rate = 0;                   ///< tokens/s
  std::vector<std::string> devices;  ///< the rows of `ranks`
  std::vector<RankTime> ranks;       ///< of one average token (generation) or the whole prompt
  std::vector<CollectiveTime> collectives;
  double imbalance = 0;  ///< part of the time that the average device waits for others
  double copies = 0;     ///< seconds of copies between devices that do not act as one
  double host = 0;       ///< seconds from the host's call to the device and back
  double disk = 0;       ///< seconds of reading weights that memory has no room for; part of the devices' `compute`

  double communication() const;  ///< seconds of all collectives
  int64_t collective_count() const;
};

/// Called now and then while something is predicted; ends it by an exception.
using Poll = std::function<void()>;

/// Times of a model's plan on a machine: of a prompt and of a generation, nullopt if the work has none of it. `plan` is
/// for `session` on the placement, and its context holds the work. Throws InvalidArgument for a device or dtype that
/// the machine does not know.
std::pair<std::optional<PhasePrediction>, std::optional<PhasePrediction>> predict(
    const models::Model& model, const models::Placement& placement, const models::ModelPlan& plan,
    const machine::MachineModel& machine, const models::SessionOptions& session, const Workload& work,
    const Poll& poll);

/// Which time counts.
enum class Objective : uint8_t { kGeneration, kPrompt, kMix };
std::string_view name_of(Objective objective);
/// "generation", "prompt" or "mix". Throws InvalidArgument that lists them.
Objective parse_objective(std::string_view text);
/// The work that counts by an objective, if there is any.
Workload work_of(Workload work, Objective objective);
/// Throws InvalidArgument if the work lacks the objective's phase.
void require_work(const Workload& workload, Objective objective);

}  // namespace shoal::tuning
