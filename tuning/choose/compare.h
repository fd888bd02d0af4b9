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

/// Changes that make a model fit. Each change alone is sufficient, and the user can make it with flags.
struct Remedies {
  Choice asked;
  std::vector<models::DeviceUse> lacking;  ///< devices that need more memory than they have
  std::optional<Choice> context;           ///< the choice with the largest context that fits
  std::optional<Choice> context_q8_0;      ///< like `context`, but with a q8_0 cache; nullopt if the q8_0 cache allows
                                           ///< no larger context
  double bits = 0;                         ///< bits per weight in the file
  std::optional<double> bits_that_fit;     ///< largest number of bits per weight with which the asked context fits
  Choice bits_choice;                      ///< the choice that fits if the file has at most `bits_that_fit` bits per
                                           ///< weight
  std::vector<std::string> quantisations;  ///< file types, such as "Q4_K_M", with at most `bits_that_fit` bits per
                                           ///< weight, and with fewer bits than the present file
  std::optional<int> more_devices;         ///< number of additional devices with which the model fits, each with as
                                           ///< much memory as `device`
  std::string device;                      ///< the device with the most memory
  bool even_shares = true;                 ///< whether the model fits on the present and additional devices with even
                                           ///< shares; false: the user must choose shares
  models::SplitMode devices_mode = models::SplitMode::kTensor;
  bool none() const { return !context && !context_q8_0 && !bits_that_fit && !more_devices; }
};

/// Remedies for a verdict that does not fit. `ways`: the devices and modes to consider, in order of preference. The
/// shares in `ways` are ignored.
Remedies remedies(Chooser& chooser, const Verdict& verdict, std::span<const Choice> ways);
/// Remedies that use the devices of the verdict, in tensor mode or layer mode.
Remedies remedies(Chooser& chooser, const Verdict& verdict);

struct Comparison {
  std::vector<Verdict> verdicts;     ///< one verdict per split; verdicts that fit come first, in order of speed
  std::optional<size_t> best;        ///< index into `verdicts`; nullopt if no choice runs
  std::string reason;                ///< a sentence that explains the best choice; "" if no choice runs
  std::optional<Remedies> remedies;  ///< remedies for the choice with the fewest missing bytes; nullopt if a choice
                                     ///< fits
};

/// Compares all sets of the asked devices that useful_sets() returns, and the asked groups. A set of several devices is
/// evaluated with devices that act as one. If there are enough layers, the set is also evaluated with devices that
/// divide the layers. If nothing fits, the table also contains choices with a host part. The table omits choices that
/// contradict the placement options. `progress` is called before each set and may throw to stop the comparison.
/// Requires a machine model. Throws InvalidArgument if no choice is possible, or if the work has no tokens in the phase
/// of the objective.
Comparison compare(Chooser& chooser, const std::function<void(int done, int total)>& progress = {});

/// Explains in one sentence why the first verdict of a sorted table is the best.
std::string reason_of(const std::vector<Verdict>& sorted, Objective objective);

}  // namespace shoal::tuning
