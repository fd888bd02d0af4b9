// What a model would do on some devices, before anybody loads it: tokens per second of prompts and generation, time in
// collectives, imbalance and memory, from a plan of the model (model_plan.h) and a model of the machine
// (meta/machine.h). And what follows from it: which of several ways to use the devices is best, and what would make a
// model fit. Pure functions of their arguments, except that devices are asked for their free memory.
#pragma once

#include <optional>
#include <span>
#include <string>
#include <vector>

#include "meta/estimate.h"
#include "meta/machine.h"
#include "models/model_plan.h"

namespace shoal::models {

/// What is to be done: as `shoal bench -p prompt -n generate -d depth`.
struct Workload {
  int64_t prompt = 512;
  int64_t generate = 128;
  int64_t depth = 0;
};

/// One way to use devices.
struct Candidate {
  DeviceGroups groups;  ///< as Placement takes them
  SplitMode mode = SplitMode::kTensor;
  std::vector<double> shares;  ///< of the devices (kTensor) or groups (kLayer); empty: even
  std::string name() const;    ///< "CPU0", "CPU0,CPU1 tensor 3,1", "CPU0,CPU1 layer"
};

/// One kind of work: a prompt, or the tokens of a generation.
struct PhasePrediction {
  double seconds = 0;                 ///< of all its tokens
  double rate = 0;                    ///< tokens/s
  std::vector<std::string> devices;   ///< the rows of `ranks`
  std::vector<meta::RankTime> ranks;  ///< of one average token (generation) or the whole prompt
  std::vector<meta::CollectiveTime> collectives;
  double imbalance = 0;  ///< meta::Estimate::imbalance()
};

struct Prediction {
  Candidate candidate;
  bool fits = false;
  std::vector<DeviceUse> memory;
  int64_t context = 0;
  std::optional<PhasePrediction> prompt, generation;  ///< nullopt where the workload has none of it
};

/// Throws InvalidArgument for what ModelPlan refuses, and for a device or dtype that the machine does not know.
Prediction predict(const Model& model, const Candidate& candidate, const meta::MachineModel& machine,
                   const PlacementOptions& placement, const SessionOptions& session, const LoadOptions& load,
                   const Workload& workload);

}  // namespace shoal::models
