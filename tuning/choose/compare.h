// All ways to use devices in one table, and remedies for a model that does not fit.
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

/// Changes that would make a model fit; each by itself. Choices differ from the asked one by flags that tools can name.
struct Remedies {
  Choice asked;
  std::vector<models::DeviceUse> lacking;  ///< devices that need more than they have
  std::optional<Choice> context;           ///< with the largest context, in any of the ways
  std::optional<Choice> context_q8_0;      ///< the same with a q8_0 cache, if its context is larger
  double bits = 0;                         ///< bits per weight of the file
  std::optional<double> bits_that_fit;     ///< with the context asked for
  Choice bits_choice;                      ///< its split
  std::vector<std::string> quantisations;  ///< with at most that many bits, and smaller than the file's: "Q4_K_M"
  std::optional<int> more_devices;         ///< this many like `device`
  std::string device;                      ///< the one with most memory
  bool even_shares = true;                 ///< false: with shares chosen for these devices
  models::SplitMode devices_mode = models::SplitMode::kTensor;
  bool none() const { return !context && !context_q8_0 && !bits_that_fit && !more_devices; }
};

/// `verdict`: one that does not fit. `ways`: devices and modes to look at, the preferred ones first; their shares do
/// not count.
Remedies remedies(Chooser& chooser, const Verdict& verdict, std::span<const Choice> ways);
/// For the devices of the verdict, in either mode.
Remedies remedies(Chooser& chooser, const Verdict& verdict);

struct Comparison {
  std::vector<Verdict> verdicts;     ///< different splits: those that fit, fastest first, then the others
  std::optional<size_t> best;        ///< of verdicts; nullopt if none runs
  std::string reason;                ///< of the best one, a sentence; "" if none runs
  std::optional<Remedies> remedies;  ///< if none fits, for the one that lacks least
};

/// Each useful set of the asked devices alone, as one and with layers divided, the asked groups, and, if nothing fits,
/// a part on the host. Choices that the options of the placement rule out are left out. `progress`: before each part of
/// the work; may throw to stop. Needs a machine. Throws InvalidArgument if no choice is possible, or the work lacks the
/// objective's phase.
Comparison compare(Chooser& chooser, const std::function<void(int done, int total)>& progress = {});

/// Why the first verdict is the best of a sorted table, a sentence.
std::string reason_of(const std::vector<Verdict>& sorted, Objective objective);

}  // namespace shoal::tuning
