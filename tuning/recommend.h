// Which of the devices to use, and how: predictions for one device, for layers divided and for tensor parallelism over
// every useful set of them, and which of these is fastest. Identical devices count once: of four alike, sets of 1, 2, 3
// and 4 are looked at, not 15.
//
//   CPU0 alone                   22.1 tokens/s
//   CPU0,CPU1 tensor even        18.0            -> "CPU0 alone is predicted 1.2x faster than CPU0,CPU1 tensor even:
//   CPU0,CPU1 layer even         21.9                33 all_reduce per token take 12.1 of 55.6 ms"
#pragma once

#include <functional>
#include <optional>
#include <string>
#include <vector>

#include "tuning/best_shares.h"
#include "tuning/fit.h"

namespace shoal::tuning {

struct RecommendOptions {
  Objective objective = Objective::kGeneration;
  int predictions = 48;  ///< most of them for the shares of a set of devices; fewer where there are many sets
  /// Told before and during each part of the work: how many are done, of how many. May throw to stop.
  std::function<void(int done, int total)> progress = {};
};

struct Recommendation {
  std::vector<Prediction> candidates;  ///< different splits: those that fit, fastest first, then the others
  std::optional<size_t> best;          ///< of candidates; nullopt if none runs
  std::string reason;                  ///< of the best one, a sentence; "" if none runs
  std::optional<Remedies> remedies;    ///< where none fits, for the one that lacks least
};

/// Sets of devices that differ: by what the devices are (all figures of the DeviceModel, and what memory is free, give
/// or take 10 %) and which of them share a domain. In order of size. Where there would be more than 64, the sets of the
/// first 1, 2, 3, ... devices by bandwidth.
std::vector<std::vector<Device*>> useful_sets(std::span<Device* const> devices, const machine::MachineModel& machine);

/// `groups`: the devices that may be used; the way they are grouped is a candidate too. A candidate that the options of
/// the placement rule out (overrides to a device that it does not have) is left out.
Recommendation recommend(const Scenario& scenario, const models::DeviceGroups& groups,
                         const RecommendOptions& options = {});

}  // namespace shoal::tuning
