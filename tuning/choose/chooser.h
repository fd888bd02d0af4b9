// Judges choices of how to run a model (choice.h) and searches for the best choice.
//
// A verdict contains the memory that a choice needs and, if the figures of the devices are known, its predicted time.
// Verdicts are ordered by missing memory, then by seconds, so a fitting choice needs no separate search. The searches
// of single dimensions (dimensions.h), the table of all choices of devices (compare.h) and the remedies use the same
// chooser and its cached verdicts. No search allocates device memory or loads weights.
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

/// Memory that must stay free.
struct Margin {
  size_t bytes = 0;  ///< on every device
  /// CPU devices keep at least 2 % of their memory free, and at least 64 MiB (or a sixteenth of the memory if that is
  /// less). Other programs use the same memory, and the system kills a process that uses too much.
  bool spare_host = false;
  /// Mapped weights do not count as needed memory. They may be read from the disk for every token instead.
  bool from_disk = false;
};
/// Bytes that must stay free on a device.
size_t margin_of(const models::DeviceUse& use, const Margin& margin);
/// Free bytes of a device minus the needed bytes and the margin; negative if the device lacks memory.
int64_t spare_bytes(const models::DeviceUse& use, const Margin& margin = {});
/// The smallest spare_bytes() of all devices.
int64_t tightest(std::span<const models::DeviceUse> uses, const Margin& margin);

struct Asked {
  Choice fixed;
  Free free = {};
  /// Options that no search changes. Predictions use the device times in `machine`; nullptr: the times are unknown.
  models::PlacementOptions placement = {};
  models::SessionOptions session = {};
  models::LoadOptions load = {};
  Workload work = {};
  Objective objective = Objective::kGeneration;
  int64_t way_tokens = 1;  ///< number of batch tokens for which the expert and latent splits are chosen
  int64_t way_rows = 0;    ///< number of cache rows that a token reads; 0: half of the context
  Margin margin = {};
  int64_t least_context = 4096;  ///< smallest context to which a search shrinks, unless the user asks for less
  int64_t prompt = 0;            ///< number of prompt tokens; the context must hold one more
  /// Whether the margin is required. If not, and no context leaves the margin, choose() takes the smallest context.
  bool must_fit = true;
  bool is_repacking_decided = false;  ///< only `load` decides about repacking, even if the result does not fit
  size_t most_prompts = std::numeric_limits<size_t>::max();  ///< limit of prompt batch sizes in the plan; the largest
                                                             ///< sizes are kept

  int64_t least() const { return std::max(least_context, prompt + 1); }
};

struct Verdict {
  Choice choice;  ///< `context` is set, not 0
  std::vector<models::DeviceUse> memory;
  bool fits = false;
  bool from_disk = false;  ///< memory is too small, but the choice runs: weights are read from the disk for every token
  Workload work;
  std::optional<PhasePrediction> prompt,
      generation;  ///< nullopt if the phase has no tokens, or if the figures are unknown
  std::string split_key;

  /// Bytes of missing memory, summed over the devices.
  double lacking() const;
  /// Whether the devices together have enough memory. If not, no shares fit (apart from rounding to units).
  bool may_fit() const;
  bool has_time() const { return prompt || generation; }
};
/// Seconds of the objective's phase. If that phase has no tokens, seconds of the other phase. Infinite without a
/// prediction.
double seconds_of(const Verdict& verdict, Objective objective);
/// Whether `one` is better: it lacks less memory, or it lacks as much and is faster. `gain`: smaller relative
/// differences count as rounding.
bool is_better(const Verdict& one, const Verdict& other, Objective objective, double gain = 0);

/// The result of choose(), with the findings that a command reports.
struct Chosen {
  Choice choice;  ///< all fields are decided
  Ways ways;      ///< decided splits and the compared seconds
  std::unique_ptr<models::Placement> placement;
  std::unique_ptr<models::ModelPlan> plan;
  std::optional<Verdict> shares, even;  ///< verdicts of the best and of even shares; nullopt if the user set shares
  bool keeps_shares = false;            ///< other shares would fit the context, but not the margin of free memory
  std::vector<Verdict> hosts;           ///< choices with weights on the host, the fastest first; empty if all weights
                                        ///< fit on the devices
  std::vector<std::string> notes;       ///< sentences about the other free dimensions
  int64_t wanted_context = 0;
  bool leaves_margin = true;
};

/// Callbacks of a search.
struct Watch {
  std::function<void()> poll = {};                        ///< called regularly; may throw to stop the search
  std::function<void(int done, int most)> progress = {};  ///< called after each new split of a share search
  /// Called for each placement for which choose() plans a session, so that the caller can count the threads of its
  /// devices. The previous placement is destroyed after the call.
  std::function<void(const models::Placement&)> placed = {};
  /// Provides the figures of the machine if a choice needs a part on the host and they are unknown. nullptr: no
  /// figures.
  std::function<std::shared_ptr<const machine::MachineModel>()> figures = {};
};

/// For use by one thread. The model must outlive the chooser.
class Chooser {
 public:
  Chooser(const models::Model& model, Asked asked, Watch watch = {});

  const models::Model& model() const { return model_; }
  const Asked& asked() const { return asked_; }
  const Watch& watch() const { return watch_; }
  bool knows_machine() const { return asked_.placement.machine != nullptr; }
  const machine::MachineModel& machine() const { return *asked_.placement.machine; }

  /// Decides all free dimensions. The result has no plan if must_fit is set and no context fits. Throws InvalidArgument
  /// if Placement or ModelPlan rejects the choice.
  Chosen choose();

  /// The verdict of a choice, with its predicted time. The plan repacks weights if there is room. The work is clipped
  /// to the context. Throws InvalidArgument if Placement or ModelPlan rejects the choice, or if the machine lacks a
  /// device or dtype.
  Verdict judge(const Choice& choice);
  /// The same for an existing placement and plan.
  Verdict judge(const Choice& choice, const models::Placement& placement, const models::ModelPlan& plan);
  /// The verdict of a choice, without its time.
  Verdict weigh(const Choice& choice);
  /// Memory of weights and caches. Plans no graph, so compute memory is not included.
  std::vector<models::DeviceUse> persistent(const Choice& choice);

  /// The placement of a choice; valid until the next call.
  const models::Placement& place(const Choice& choice);
  /// Placement options of a choice. Its expert and latent splits are decided and, if `ways` is given, stored there.
  models::PlacementOptions options_of(const Choice& choice, Ways* ways = nullptr) const;
  models::SessionOptions session_of(const Choice& choice) const;
  /// The context in tokens: from the choice, or else from the session.
  int64_t context_of(const Choice& choice) const;
  /// A plan with repacked weights if they fit. Otherwise a plan with the weights as in the file, if it lacks less
  /// memory. `spare`: receives the spare bytes of the tightest device beyond the margin, for the better of the two
  /// plans.
  models::ModelPlan plan(const Choice& choice, const Margin& margin, size_t most_prompts, int64_t* spare = nullptr);
  /// Calls Watch::figures if the figures are unknown.
  void find_figures();

 private:
  Choice with_shares(Chosen& chosen, const Choice& choice);
  /// Makes the placement for a session and reports it (Watch::placed). `again`: replaces the placement of the same
  /// choice, because `rows_` has changed.
  void settle(const Choice& choice, bool again = false);
  Verdict weighed(const Choice& choice, const models::ModelPlan& plan) const;
  void time(Verdict& verdict, const models::Placement& placement, const models::ModelPlan& plan) const;

  const models::Model& model_;
  Asked asked_;
  Watch watch_;
  int64_t rows_;  ///< number of latent cache rows that a token reads; by default half of the context
  std::unique_ptr<models::Placement> placement_;  ///< the latest placement
  Choice placed_;                                 ///< choice of the latest placement
  Ways ways_;                                     ///< splits of the latest placement
  std::map<std::string, Verdict> known_;          ///< verdicts by devices, split and session fields
};

}  // namespace shoal::tuning
