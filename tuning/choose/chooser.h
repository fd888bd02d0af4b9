// Evaluates choices of how to run a model (choice.h) and searches for the best choice.
//
// A verdict contains the memory that a choice needs. If the machine model is known, the verdict also contains the
// predicted time. Verdicts are ordered by missing memory, then by seconds. So the best verdict fits if any verdict
// fits. One chooser, with its cached verdicts, serves the searches of single fields (dimensions.h), the comparison of
// devices (compare.h) and the search for remedies. No search allocates device memory or loads weights.
//
//   Asked (from flags)  ->  Chooser::choose()  ->  Chosen: choice, placement, plan
#pragma once

#include <functional>
#include <limits>
#include <map>
#include <memory>
#include <optional>
#include <string>
#include <vector>

#include "tuning/choose/choice.h"
#include "tuning/choose/ways.h"
#include "tuning/predict.h"

namespace shoal::tuning {

/// Memory that must stay free on the devices.
struct Margin {
  size_t bytes = 0;  ///< number of bytes on every device
  /// If true, a CPU device keeps at least 2 % of its memory free. It also keeps at least 64 MiB free, or 1/16 of its
  /// memory if 1/16 is less than 64 MiB. Other programs use the same memory, and the system kills a process that uses
  /// too much.
  bool spare_host = false;
  /// If true, mapped weights do not count as needed memory. The system may then read these weights from the disk for
  /// every token.
  bool from_disk = false;
};
/// Bytes that must stay free on a device.
size_t margin_of(const models::DeviceUse& use, const Margin& margin);
/// Free bytes of a device minus the needed bytes and the margin. Negative if the device has too little memory.
int64_t spare_bytes(const models::DeviceUse& use, const Margin& margin = {});
/// The smallest result of spare_bytes() among the devices.
int64_t tightest(std::span<const models::DeviceUse> uses, const Margin& margin);

struct Asked {
  Choice fixed;
  Free free = {};
  /// Options that no search changes. Predictions use the device times in `placement.machine`; nullptr: the times are
  /// unknown.
  models::PlacementOptions placement = {};
  models::SessionOptions session = {};
  models::LoadOptions load = {};
  Workload work = {};
  Objective objective = Objective::kGeneration;
  int64_t way_tokens = 1;  ///< number of tokens in the batch for which the search selects the expert split and the
                           ///< latent split
  int64_t way_rows = 0;    ///< number of latent cache rows that a token reads; 0: half of the context
  Margin margin = {};
  int64_t least_context = 4096;  ///< minimum context that a search selects; if the user asks for a smaller context,
                                 ///< that context is the minimum
  int64_t prompt = 0;            ///< number of prompt tokens; the context has room for at least one more token
  /// Whether the margin is required. If the margin is optional and no context leaves it free, choose() takes the
  /// smallest context.
  bool must_fit = true;
  bool is_repacking_decided = false;  ///< whether `load` alone decides about repacking, even if the repacked weights do
                                      ///< not fit
  size_t most_prompts = std::numeric_limits<size_t>::max();  ///< maximum number of prompt batch sizes in the plan; if
                                                             ///< there are more batch sizes, the plan omits the
                                                             ///< smallest sizes

  int64_t least() const { return std::max(least_context, prompt + 1); }
};

struct Verdict {
  Choice choice;  ///< `context` is the actual number of tokens, not 0
  std::vector<models::DeviceUse> memory;
  bool fits = false;
  bool from_disk = false;  ///< whether the choice runs although the memory is too small: weights are read from the disk
                           ///< for every token
  Workload work;
  std::optional<PhasePrediction> prompt,
      generation;  ///< nullopt if the phase has no tokens, or if the machine model is unknown
  std::string split_key;

  /// Sum of the missing bytes of all devices.
  double lacking() const;
  /// Whether the total memory of the devices is large enough. If not, no shares fit (apart from rounding to units such
  /// as heads).
  bool may_fit() const;
  bool has_time() const { return prompt || generation; }
};
/// Seconds of the phase that the objective names: prompt, generation, or both (kMix). If the named phase has no tokens,
/// returns the seconds of the phase that has tokens. Infinite if the verdict has no prediction.
double seconds_of(const Verdict& verdict, Objective objective);
/// Whether `one` is better. The verdict with fewer missing bytes is better. If the missing bytes are equal, the faster
/// verdict is better. `gain`: relative differences up to this value count as rounding errors.
bool is_better(const Verdict& one, const Verdict& other, Objective objective, double gain = 0);

/// The result of choose(), with values that commands print.
struct Chosen {
  Choice choice;  ///< all fields are decided
  Ways ways;      ///< the decided expert split and latent split, with the seconds of all compared splits
  std::unique_ptr<models::Placement> placement;
  std::unique_ptr<models::ModelPlan> plan;
  std::optional<Verdict> shares, even;  ///< verdicts of the best shares and of even shares; nullopt if the user set the
                                        ///< shares
  bool keeps_shares = false;            ///< true: with the shares of the verdict `shares`, the chosen context fits only
                                        ///< without the margin; `choice` therefore has different shares
  std::vector<Verdict> hosts;           ///< choices with weights on the host, fastest choice first; empty if all
                                        ///< weights fit on the devices
  std::vector<std::string> notes;       ///< sentences about the selected cache types
  int64_t wanted_context = 0;
  bool leaves_margin = true;
};

/// Callbacks of a search.
struct Watch {
  std::function<void()> poll = {};                        ///< called regularly; may throw to stop the search
  std::function<void(int done, int most)> progress = {};  ///< called after each split that a share search has not tried
                                                          ///< before
  /// Called for each placement for which choose() plans a session. The caller can then count the threads of the
  /// placement's devices. The previous placement is destroyed after the call.
  std::function<void(const models::Placement&)> placed = {};
  /// Provides the machine model if a choice needs a host part and the model is unknown. nullptr: the machine model
  /// stays unknown.
  std::function<std::shared_ptr<const machine::MachineModel>()> figures = {};
};

/// One thread at a time may use a chooser. The model must outlive the chooser.
class Chooser {
 public:
  Chooser(const models::Model& model, Asked asked, Watch watch = {});

  const models::Model& model() const { return model_; }
  const Asked& asked() const { return asked_; }
  const Watch& watch() const { return watch_; }
  bool knows_machine() const { return asked_.placement.machine != nullptr; }
  const machine::MachineModel& machine() const { return *asked_.placement.machine; }

  /// Decides all free fields. The result has no plan if must_fit is set and no context fits. Throws InvalidArgument if
  /// Placement or ModelPlan rejects the choice.
  Chosen choose();

  /// The verdict of a choice, with its predicted time. The plan contains repacked weights if the repacked weights fit.
  /// The predicted work has at most as many tokens as the context. Throws InvalidArgument if Placement or ModelPlan
  /// rejects the choice, or if the machine model does not contain a device or a dtype.
  Verdict judge(const Choice& choice);
  /// The verdict of a choice whose placement and plan already exist.
  Verdict judge(const Choice& choice, const models::Placement& placement, const models::ModelPlan& plan);
  /// The verdict of a choice, without a predicted time.
  Verdict weigh(const Choice& choice);
  /// Memory of weights and caches by device. The result does not include compute memory, because no graph is planned.
  std::vector<models::DeviceUse> persistent(const Choice& choice);

  /// The placement of a choice. The reference is valid until the next call.
  const models::Placement& place(const Choice& choice);
  /// Placement options of a choice, with decided expert and latent splits. `ways`: receives these splits.
  models::PlacementOptions options_of(const Choice& choice, Ways* ways = nullptr) const;
  models::SessionOptions session_of(const Choice& choice) const;
  /// The context in tokens. If the choice has no context, returns the context of the session options.
  int64_t context_of(const Choice& choice) const;
  /// Returns a plan with repacked weights if the repacked weights fit. Otherwise, also makes a plan with the weights as
  /// in the file, and returns the plan that lacks less memory. `spare`: receives the result of tightest() for the plan,
  /// or the larger result if two plans were made.
  models::ModelPlan plan(const Choice& choice, const Margin& margin, size_t most_prompts, int64_t* spare = nullptr);
  /// Calls Watch::figures if the machine model is unknown.
  void find_figures();

 private:
  Choice with_shares(Chosen& chosen, const Choice& choice);
  /// Makes the placement for a session and calls Watch::placed. `again`: replaces the placement even if it belongs to
  /// the same choice, because `rows_` has changed.
  void settle(const Choice& choice, bool again = false);
  Verdict weighed(const Choice& choice, const models::ModelPlan& plan) const;
  void time(Verdict& verdict, const models::Placement& placement, const models::ModelPlan& plan) const;

  const models::Model& model_;
  Asked asked_;
  Watch watch_;
  int64_t rows_;  ///< number of latent cache rows that a token reads; half of the context by default
  std::unique_ptr<models::Placement> placement_;  ///< the latest placement
  Choice placed_;                                 ///< choice of the latest placement
  Ways ways_;                                     ///< splits of the latest placement
  std::map<std::string, Verdict> known_;          ///< cached verdicts; a key contains the devices, the split key and
                                                  ///< the session fields
};

}  // namespace shoal::tuning
