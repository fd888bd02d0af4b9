// Judges choices of how to run a model (choice.h) and searches for the best one.
//
// A verdict is the memory of a choice's plan and, if figures of the devices are known, its time. Verdicts are ordered
// by the memory that devices lack, then by seconds: a choice that fits is not a search of its own. The searches of the
// dimensions (dimensions.h), the table of all ways to use the devices (compare.h) and remedies share the judge and what
// it has found before. No search allocates device memory or loads weights.
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

/// Memory that stays free.
struct Margin {
  size_t bytes = 0;  ///< on every device
  /// On CPU devices at least 2 % of the memory and 64 MiB (a sixteenth, if that is less) stay free: other programs take
  /// from the same memory, and the system kills a process that takes too much.
  bool spare_host = false;
  /// Mapped weights need no memory: they may be read from the disk for every token.
  bool from_disk = false;
};
/// Bytes that have to stay free on a device.
size_t margin_of(const models::DeviceUse& use, const Margin& margin);
/// Bytes that a device has beyond its need and the margin, negative if it does not fit.
int64_t spare_bytes(const models::DeviceUse& use, const Margin& margin = {});
/// spare_bytes() of the tightest device.
int64_t tightest(std::span<const models::DeviceUse> uses, const Margin& margin);

struct Asked {
  Choice fixed;
  Free free = {};
  /// Options that no search changes. `machine` also has the figures for predictions; nullptr: none are known.
  models::PlacementOptions placement = {};
  models::SessionOptions session = {};
  models::LoadOptions load = {};
  Workload work = {};
  Objective objective = Objective::kGeneration;
  int64_t way_tokens = 1;  ///< of a batch that the ways of experts and latent caches have to be good for
  int64_t way_rows = 0;    ///< of the cache that a token sees; 0: half of the context
  Margin margin = {};
  int64_t least_context = 4096;  ///< a context that shrinks is not smaller, unless less was asked for
  int64_t prompt = 0;            ///< tokens that the context has to hold besides one more
  /// The margin is required. If not, and no context leaves it, choose() takes the least context.
  bool must_fit = true;
  bool is_repacking_decided = false;  ///< weights are repacked as `load` says, whether they fit or not
  size_t most_prompts = std::numeric_limits<size_t>::max();  ///< batches of a prompt in the plan, the largest first

  int64_t least() const { return std::max(least_context, prompt + 1); }
};

struct Verdict {
  Choice choice;  ///< with its context
  std::vector<models::DeviceUse> memory;
  bool fits = false;
  bool from_disk = false;  ///< does not fit, but runs: weights are read from the disk for every token
  Workload work;
  std::optional<PhasePrediction> prompt,
      generation;  ///< nullopt if the work has none, or without figures of the devices
  std::string split_key;

  /// Bytes that are missing on all devices together.
  double lacking() const;
  /// Devices together have as much memory as they need. If not, no other shares fit, but for rounding to units.
  bool may_fit() const;
  bool has_time() const { return prompt || generation; }
};
/// Seconds of the work by the objective; of the other phase if there is no such work. Infinite without a prediction.
double seconds_of(const Verdict& verdict, Objective objective);
/// Less lacking memory first, then fewer seconds. Differences of less than `gain` (a part) are rounding.
bool is_better(const Verdict& one, const Verdict& other, Objective objective, double gain = 0);

/// The result of choose(), with the findings that a command reports.
struct Chosen {
  Choice choice;  ///< complete
  Ways ways;      ///< the seconds that were compared
  std::unique_ptr<models::Placement> placement;
  std::unique_ptr<models::ModelPlan> plan;
  std::optional<Verdict> shares, even;  ///< the best shares and even ones, if the shares were free
  bool keeps_shares = false;            ///< other shares fit the chosen context, but leave less than the margin
  std::vector<Verdict> hosts;           ///< ways to leave a part on the host, the fastest first, if one was needed
  std::vector<std::string> notes;       ///< sentences about other dimensions that were free
  int64_t wanted_context = 0;
  bool leaves_margin = true;
};

/// Callbacks of a search.
struct Watch {
  std::function<void()> poll = {};                        ///< called now and then; throws to stop
  std::function<void(int done, int most)> progress = {};  ///< after each new split of a search for shares
  /// Told of each placement for which choose() plans a session, so that its devices' threads are counted. The placement
  /// before is destroyed afterwards.
  std::function<void(const models::Placement&)> placed = {};
  /// Figures for a part on the host, if none are known; nullptr: there are none.
  std::function<std::shared_ptr<const machine::MachineModel>()> figures = {};
};

/// One thread. The model must outlive it.
class Chooser {
 public:
  Chooser(const models::Model& model, Asked asked, Watch watch = {});

  const models::Model& model() const { return model_; }
  const Asked& asked() const { return asked_; }
  const Watch& watch() const { return watch_; }
  bool knows_machine() const { return asked_.placement.machine != nullptr; }
  const machine::MachineModel& machine() const { return *asked_.placement.machine; }

  /// Decides everything that is free. The result has no plan if a context must fit and none does. Throws
  /// InvalidArgument for what Placement and ModelPlan refuse.
  Chosen choose();

  /// The verdict with its time. Weights are repacked if there is room. Throws InvalidArgument for what Placement and
  /// ModelPlan refuse, and for a device or dtype that the machine does not know. The work is clipped to the context.
  Verdict judge(const Choice& choice);
  /// The same for a placement and a plan that exist.
  Verdict judge(const Choice& choice, const models::Placement& placement, const models::ModelPlan& plan);
  /// The verdict without its time.
  Verdict weigh(const Choice& choice);
  /// Weights and caches alone; no graph is planned.
  std::vector<models::DeviceUse> persistent(const Choice& choice);

  /// The placement of a choice; valid until the next call.
  const models::Placement& place(const Choice& choice);
  /// Options for the placement of a choice, with decided ways.
  models::PlacementOptions options_of(const Choice& choice, Ways* ways = nullptr) const;
  models::SessionOptions session_of(const Choice& choice) const;
  /// The context in tokens: the choice's, or the session's.
  int64_t context_of(const Choice& choice) const;
  /// A plan with repacked weights if they fit, else with the weights as they are in the file if these lack less.
  /// `spare`: bytes that the tightest device has beyond the margin, in the better of the two ways to load.
  models::ModelPlan plan(const Choice& choice, const Margin& margin, size_t most_prompts, int64_t* spare = nullptr);
  /// Asks for figures (Watch::figures) if none are known.
  void find_figures();

 private:
  Choice with_shares(Chosen& chosen, const Choice& choice);
  /// The placement for a session; `rows_` changed if `again`.
  void settle(const Choice& choice, bool again = false);
  Verdict weighed(const Choice& choice, const models::ModelPlan& plan) const;
  void time(Verdict& verdict, const models::Placement& placement, const models::ModelPlan& plan) const;

  const models::Model& model_;
  Asked asked_;
  Watch watch_;
  int64_t rows_;  ///< of a latent cache that a token sees: by default half of its context
  std::unique_ptr<models::Placement> placement_;  ///< the last one
  Choice placed_;                                 ///< its choice
  Ways ways_;                                     ///< its ways
  std::map<std::string, Verdict> known_;          ///< by devices, split and fields of the session
};

}  // namespace shoal::tuning
