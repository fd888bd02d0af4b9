// What a model would do on some devices, before it is loaded: tokens per second of prompts and generation, time in
// collectives, imbalance and memory, from a plan of the model (model_plan.h) and a model of the machine
// (machine/machine.h). Pure functions of their arguments, except that devices are asked for their free memory.
// best_shares.h and recommend.h say what follows from it.
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
#include "tuning/choose/ways.h"
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

/// What stays on the host beside the devices; as PlacementOptions has it.
struct HostPart {
  int64_t device_layers = -1;
  int64_t expert_layers = 0;
  bool empty() const { return device_layers < 0 && expert_layers == 0; }
  std::string flags() const;  ///< "-ngl 40 -ncmoe 60"; "" where it is empty
  bool operator==(const HostPart&) const = default;
};

/// One way to use devices.
struct Candidate {
  models::DeviceGroups groups;  ///< as Placement takes them
  models::SplitMode mode = models::SplitMode::kTensor;
  std::vector<double> shares;  ///< of the devices (kTensor) or groups (kLayer); empty: even
  HostPart host = {};          ///< empty: as the options of the placement say

  size_t device_count() const;
  std::string devices() const;  ///< "CPU0,CPU1", "CPU0+CPU1,CPU2"
  std::string ratio() const;    ///< as parse_ratio reads it, "3,1"; empty: even
  std::string name() const;     ///< "CPU0", "CPU0,CPU1 tensor 3,1", "CPU0,CPU1 layer even", "CUDA0 -ncmoe 8"
};

/// "3,1" for {0.75, 0.25}: whole numbers where their sum is at most 999, or else decimals.
std::string ratio_text(std::span<const double> shares);

/// One kind of work: a prompt, or the tokens of a generation.
struct PhasePrediction {
  double seconds = 0;                   ///< of all its tokens
  double rate = 0;                      ///< tokens/s
  std::vector<std::string> devices;     ///< the rows of `ranks`
  std::vector<tuning::RankTime> ranks;  ///< of one average token (generation) or the whole prompt
  std::vector<tuning::CollectiveTime> collectives;
  double imbalance = 0;  ///< part of the time that the average device waits for others
  double copies = 0;     ///< seconds of copies between devices that do not act as one
  double host = 0;       ///< seconds from the host's call to the device and back
  double disk = 0;       ///< seconds of reading weights that memory has no room for; part of the devices' `compute`

  double communication() const;  ///< seconds of all collectives
  int64_t collective_count() const;
};

struct Prediction {
  Candidate candidate;
  bool fits = false;
  bool from_disk = false;  ///< does not fit, but runs: weights are read from the disk for every token
  std::vector<models::DeviceUse> memory;
  size_t host_bytes = 0;
  int64_t context = 0;
  Workload workload;
  std::optional<PhasePrediction> prompt, generation;  ///< nullopt where the workload has none of it
  std::string split_key;
};

/// Called now and then while something is predicted; ends it by an exception.
using Poll = std::function<void()>;

/// Everything that predictions of several candidates have in common.
struct Scenario {
  const models::Model& model;
  const machine::MachineModel& machine;
  models::PlacementOptions placement;
  models::SessionOptions session;
  models::LoadOptions load;
  Workload workload;
  Poll poll = {};
  AskedWays ways = {};  ///< rows 0: those that the workload sees
  /// With the weights repacked where there is room, as models::plan_to_load(). Throws InvalidArgument for what
  /// ModelPlan refuses, for a device or dtype that the machine does not know, and for more tokens than the context has.
  Prediction predict(const Candidate& candidate) const;
  /// The same of what has been planned: `plan` is for `session` on the placement, which is the candidate's.
  Prediction predict(const Candidate& candidate, const models::Placement& there, const models::ModelPlan& plan) const;
};

/// Which time counts.
enum class Objective : uint8_t { kGeneration, kPrompt, kMix };
std::string_view name_of(Objective objective);
/// "generation", "prompt" or "mix". Throws InvalidArgument that lists them.
Objective parse_objective(std::string_view text);
/// Has the workload what the objective is about? Throws InvalidArgument where it has not.
void require_work(const Workload& workload, Objective objective);
/// Seconds that the workload takes by the objective; of what there is where it has nothing of that kind.
double seconds_of(const Prediction& prediction, Objective objective);

/// The shares that are shortest to write and lead to the same split: 3,1 for {0.7512, 0.2488}; with few decimals where
/// there are none with numbers up to 99.
std::vector<double> simplest_shares(const Scenario& scenario, const Candidate& candidate);

/// The options for a candidate's Placement.
models::PlacementOptions placement_of(const Candidate& candidate, models::PlacementOptions options);
/// The same in a scenario: its options, with the ways that it asks for or that are faster, and plans for its machine,
/// which must outlive the placement.
models::PlacementOptions placement_of(const Candidate& candidate, const Scenario& scenario);
/// Names the placement of all weights and caches: two ratios that lead to the same split have the same key.
std::string split_key(const models::Model& model, const models::Placement& placement);

/// Bytes of a device that stay free, negative if it has too little, for mapped weights included; and as a part of the
/// bytes that are free now.
int64_t margin_bytes(const models::DeviceUse& use);
double margin_part(const models::DeviceUse& use);

}  // namespace shoal::tuning
