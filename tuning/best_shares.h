// The shares that make a model fastest on some devices: a search by predictions (predict.h), which cost a few plans
// each and no run. It starts from even shares and from shares in proportion to the devices' speed at this work, gives
// what does not fit into a device's memory to others, and then moves shares between devices, in smaller and smaller
// parts, for as long as that is predicted to gain. Ratios that lead to the same split are predicted once.
//
//   CPU0 three times as fast as CPU1, 8 KV heads:  start 3,1 -> 6 and 2 heads; 7 and 1 slower, 5 and 3 slower: 3,1
#pragma once

#include <functional>
#include <map>
#include <string>

#include "tuning/predict.h"

namespace shoal::tuning {

struct ShareSearch {
  Objective objective = Objective::kGeneration;
  int predictions = 0;  ///< most of them; 0: as many as that number of shares is worth, at most 96
  /// Each device, or group, has to have a share: at least one unit (of the feed-forward block, or a layer).
  bool all_take_part = false;
  /// Seconds of the workload on one device alone, by its name, that are known from other searches; those that are
  /// found are put there. nullptr: none.
  std::map<std::string, double>* alone = nullptr;
  /// Told before each prediction how many there were, of at most how many. May throw to stop.
  std::function<void(int done, int most)> progress = {};
};

struct BestShares {
  Prediction best;      ///< the fastest that fits; where none does, the one that lacks least
  Prediction even;      ///< for comparison
  int predictions = 0;  ///< how many different splits were looked at
};

/// `candidate`: devices and mode; its shares do not count. In kLayer mode shares are of its groups. Throws what
/// predict() throws.
BestShares best_shares(const Scenario& scenario, const Candidate& candidate, const ShareSearch& search = {});

/// Shares in proportion to how fast each device (kTensor) or group (kLayer) does the workload by itself, whether it
/// would fit there or not. `alone`: as ShareSearch has it.
std::vector<double> shares_by_speed(const Scenario& scenario, const Candidate& candidate, Objective objective,
                                    std::map<std::string, double>* alone = nullptr);

/// Have its devices together as much memory as they need? Where they have not, no other shares fit either, or only by
/// what rounding to units leaves.
bool may_fit(const Prediction& prediction);

/// As little as possible changed so that no device has more than its memory holds, as far as `prediction`, made with
/// its candidate's shares, tells.
std::vector<double> clipped_by_memory(const Prediction& prediction);

}  // namespace shoal::tuning
