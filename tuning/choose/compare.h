// A table of all useful choices of devices, and remedies for a model that does not fit.
//
//   CPU0 alone                   22.1 tokens/s
//   CPU0,CPU1 tensor even        18.0            -> "CPU0 alone is predicted 1.2x faster than CPU0,CPU1 tensor even:
//   CPU0,CPU1 layer even         21.9                33 all_reduce per token take 12.1 of 55.6 ms"
#pragma once

#include <optional>
#include <span>
#include <string>
#include <vector>

#include "tuning/choose/chooser.h"

namespace shoal::tuning {

/// Changes that make a model fit. Each change is sufficient alone and can be expressed with flags.
struct Remedies {
  Choice asked;
  std::vector<models::DeviceUse> lacking;  ///< devices that need more memory than they have
  std::optional<Choice> context;           ///< the choice that fits with the largest context
  std::optional<Choice> context_q8_0;      ///< the same with a q8_0 cache, if it allows a larger context
  double bits = 0;                         ///< bits per weight in the file
  std::optional<double> bits_that_fit;     ///< bits per weight with which the asked context fits
  Choice bits_choice;                      ///< the choice for `bits_that_fit`
  std::vector<std::string> quantisations;  ///< file types with at most `bits_that_fit`, smaller than the present file:
                                           ///< "Q4_K_M"
  std::optional<int> more_devices;         ///< number of additional devices with the memory of `device`
  std::string device;                      ///< the device with most memory
  bool even_shares = true;                 ///< whether the additional devices work with even shares; false: shares must
                                           ///< be chosen
  models::SplitMode devices_mode = models::SplitMode::kTensor;
  bool none() const { return !context && !context_q8_0 && !bits_that_fit && !more_devices; }
};

/// Remedies for a verdict that does not fit. `ways`: devices and modes to consider, in order of preference; their
/// shares are ignored.
Remedies remedies(Chooser& chooser, const Verdict& verdict, std::span<const Choice> ways);
/// Remedies that use the devices of the verdict, in either mode.
Remedies remedies(Chooser& chooser, const Verdict& verdict);

struct Comparison {
  std::vector<Verdict> verdicts;     ///< one per split; fitting ones first, by speed
  std::optional<size_t> best;        ///< index into `verdicts`; nullopt if no choice runs
  std::string reason;                ///< a sentence that explains the best choice; "" if no choice runs
  std::optional<Remedies> remedies;  ///< if no choice fits: remedies for the choice with the least missing memory
};

/// Compares all useful sets of the asked devices, and the asked groups. Each set is evaluated with its devices acting
/// as one and with divided layers. If nothing fits, choices with a part on the host are added. Choices that contradict
/// the placement options are omitted. `progress` is called before each part of the work and may throw to stop. Requires
/// a machine. Throws InvalidArgument if no choice is possible, or if the work lacks the objective's phase.
Comparison compare(Chooser& chooser, const std::function<void(int done, int total)>& progress = {});

/// Explains in one sentence why the first verdict of a sorted table is the best.
std::string reason_of(const std::vector<Verdict>& sorted, Objective objective);

}  // namespace shoal::tuning
