#include "tuning/recommend.h"

#include <fmt/format.h>

#include <algorithm>
#include <cmath>
#include <exception>
#include <map>
#include <set>

#include "base/error.h"
#include "tuning/device_kinds.h"
#include "tuning/host_part.h"

namespace shoal::tuning {
namespace {

constexpr size_t kMostSets = 64;
constexpr size_t kMostDevicesForSets = 12;
/// Of all sets together, and at least of each.
constexpr int kManyPredictions = 640;
constexpr int kFewPredictions = 16;
/// Most that all predictions take together, in layers of one device, before only the fastest sets are looked at
/// closely; some seconds.
constexpr double kMostEffort = 20000;
constexpr size_t kClosely = 2;
constexpr int kLeastPredictions = 8;
/// Ways with fewer devices that are looked at where nothing fits: those with most memory.
constexpr size_t kMostNarrowWays = 4;

/// The first 1, 2, 3, ... devices by bandwidth.
std::vector<std::vector<Device*>> first_sets(std::span<Device* const> devices, const machine::MachineModel& machine) {
  const auto model_of = [&](const Device& device) -> const machine::DeviceModel& {
    return machine.devices[static_cast<size_t>(machine.index(device.name()))];
  };
  std::vector<Device*> sorted(devices.begin(), devices.end());
  std::stable_sort(sorted.begin(), sorted.end(),
                   [&](const Device* a, const Device* b) { return model_of(*a).bandwidth > model_of(*b).bandwidth; });
  std::vector<std::vector<Device*>> sets;
  for (size_t count = 1; count <= sorted.size(); ++count) {
    sets.emplace_back(sorted.begin(), sorted.begin() + static_cast<std::ptrdiff_t>(count));
  }
  return sets;
}

Candidate acting_as_one(const std::vector<Device*>& set) {
  return {{set}, models::SplitMode::kTensor, {}};
}

Candidate layers_of(const std::vector<Device*>& set) {
  Candidate layers{{}, models::SplitMode::kLayer, {}};
  for (Device* device : set) layers.groups.push_back({device});
  return layers;
}

std::vector<Device*> all_of(const models::DeviceGroups& groups) {
  std::vector<Device*> devices;
  for (const auto& group : groups) devices.insert(devices.end(), group.begin(), group.end());
  return devices;
}

bool are_grouped(const models::DeviceGroups& groups) {
  return groups.size() > 1 && groups.size() < all_of(groups).size();
}

/// Where nothing fits: all devices in every mode, the one of the command first, then sets of fewer of them.
std::vector<Candidate> ways_of(const Scenario& scenario, const models::DeviceGroups& groups) {
  const std::vector<Device*> devices = all_of(groups);
  std::vector<Candidate> ways{acting_as_one(devices)};
  if (devices.size() == 1) return ways;
  if (are_grouped(groups)) ways.push_back({groups, models::SplitMode::kLayer, {}});
  ways.push_back(layers_of(devices));
  if (scenario.placement.mode == models::SplitMode::kLayer) std::rotate(ways.begin(), ways.begin() + 1, ways.end());
  auto sets = useful_sets(devices, scenario.machine);
  std::erase_if(sets, [&](const auto& set) { return set.size() == devices.size(); });
  const auto free = [](const std::vector<Device*>& set) {
    size_t bytes = 0;
    for (const Device* device : set) bytes += device->memory().free;
    return bytes;
  };
  std::stable_sort(sets.begin(), sets.end(), [&](const auto& a, const auto& b) { return free(a) > free(b); });
  for (size_t i = 0; i < std::min(sets.size(), kMostNarrowWays); ++i) {
    ways.push_back(acting_as_one(sets[i]));
    if (sets[i].size() > 1) ways.push_back(layers_of(sets[i]));
  }
  return ways;
}

/// Predictions of everything that is worth looking at.
class Comparison {
 public:
  Comparison(const Scenario& scenario, const RecommendOptions& options) : scenario_(scenario), options_(options) {}

  std::vector<Prediction> run(const models::DeviceGroups& groups) {
    const std::vector<Device*> devices = all_of(groups);
    const auto sets = useful_sets(devices, scenario_.machine);
    // With many sets less is gained by looking closely at each.
    const int part = std::max(kFewPredictions, kManyPredictions / static_cast<int>(sets.size()));
    const int predictions = std::min(options_.predictions, part);
    const bool has_time = total_effort(sets) * predictions <= kMostEffort;
    for (size_t i = 0; i < sets.size(); ++i) {
      const auto tell = [&] {
        if (options_.progress) options_.progress(static_cast<int>(i), static_cast<int>(sets.size()));
      };
      tell();
      consider_set(sets[i],
                   {options_.objective, has_time ? predictions : 1, false, &alone_, [&](int, int) { tell(); }});
    }
    if (!has_time) look_closely(predictions);
    if (are_grouped(groups)) consider({groups, models::SplitMode::kLayer, {}});
    if (found_.empty() && refusal_) std::rethrow_exception(refusal_);
    return std::move(found_);
  }

  /// What using all devices costs is to be seen at the best of the splits in which every one of them does something.
  std::vector<Prediction> all_taking_part(const models::DeviceGroups& groups) {
    const std::vector<Device*> set = all_of(groups);
    const ShareSearch search{options_.objective, affordable(set.size(), options_.predictions), true, &alone_,
                             [&](int, int) {
                               if (options_.progress) options_.progress(0, 1);
                             }};
    for (const Candidate& candidate : {acting_as_one(set), layers_of(set)}) {
      if (candidate.mode == models::SplitMode::kLayer && !has_layers_for(set)) continue;
      try {
        const Prediction best = best_shares(scenario_, candidate, search).best;
        if (has_all(best.candidate.shares)) add(best);
      } catch (const InvalidArgument&) {
        refusal_ = std::current_exception();
      }
    }
    return std::move(found_);
  }

  /// All devices, and on the host as little as has to be there.
  std::vector<Prediction> with_host(const models::DeviceGroups& groups) {
    const std::vector<Device*> set = all_of(groups);
    std::vector<Candidate> ways{acting_as_one(set)};
    if (set.size() > 1 && has_layers_for(set)) ways.push_back(layers_of(set));
    for (const Candidate& candidate : host_parts(scenario_, ways, {})) consider(candidate);
    return std::move(found_);
  }

 private:
  /// What it takes to predict a set, in layers of one device.
  double effort(size_t devices) const {
    return static_cast<double>(scenario_.model.hparams.layers) * static_cast<double>(devices);
  }
  double total_effort(const std::vector<std::vector<Device*>>& sets) const {
    double all = 0;
    for (const auto& set : sets) all += set.size() > 1 ? effort(set.size()) : 0;
    return all;
  }
  /// As many predictions of a set as it may take.
  int affordable(size_t devices, int wanted) const {
    return std::clamp(static_cast<int>(kMostEffort / kClosely / 2 / effort(devices)), kLeastPredictions, wanted);
  }

  /// Shares of the sets that are fastest so far: of the others even the best shares are of no use.
  void look_closely(int predictions) {
    std::vector<Prediction> fastest;
    for (const Prediction& one : found_) {
      if (one.fits && one.candidate.mode == models::SplitMode::kTensor && one.candidate.device_count() > 1) {
        fastest.push_back(one);
      }
    }
    std::stable_sort(fastest.begin(), fastest.end(), [&](const Prediction& a, const Prediction& b) {
      return seconds_of(a, options_.objective) < seconds_of(b, options_.objective);
    });
    std::set<std::string> seen;
    for (const Prediction& one : fastest) {
      if (seen.size() == kClosely) break;
      if (!seen.insert(one.candidate.devices()).second) continue;
      const std::vector<Device*>& set = one.candidate.groups.front();
      const BestShares shares =
          best_shares(scenario_, acting_as_one(set),
                      {options_.objective, affordable(set.size(), predictions), false, &alone_, [&](int, int) {
                         if (options_.progress) options_.progress(0, 1);
                       }});
      if (has_all(shares.best.candidate.shares)) add(shares.best);
    }
  }

  void consider_set(const std::vector<Device*>& set, const ShareSearch& search) {
    if (set.size() == 1) {
      consider(acting_as_one(set));
      return;
    }
    try {
      const BestShares shares = best_shares(scenario_, acting_as_one(set), search);
      add(shares.even);
      if (has_all(shares.best.candidate.shares)) add(shares.best);
    } catch (const InvalidArgument&) {
      refusal_ = std::current_exception();
    }
    if (!has_layers_for(set)) return;
    Candidate layers = layers_of(set);
    const Prediction* even = consider(layers);
    if (even != nullptr && (!may_fit(*even) || (even->fits && are_alike(set)))) return;
    layers.shares = shares_of_layers(layers);
    if (!layers.shares.empty() && has_all(layers.shares)) consider(layers);
  }

  bool has_layers_for(const std::vector<Device*>& set) const {
    return static_cast<int64_t>(set.size()) <= scenario_.model.hparams.layers;
  }

  /// A device without a share is no help; sets without it are looked at for themselves.
  static bool has_all(const std::vector<double>& shares) {
    return std::find(shares.begin(), shares.end(), 0.0) == shares.end();
  }

  std::vector<double> shares_of_layers(Candidate layers) {
    try {
      layers.shares = shares_by_speed(scenario_, layers, options_.objective, &alone_);
      const Prediction prediction = scenario_.predict(layers);
      if (!prediction.fits) layers.shares = clipped_by_memory(prediction);
      return simplest_shares(scenario_, layers);
    } catch (const InvalidArgument&) {
      refusal_ = std::current_exception();
      return {};
    }
  }

  /// All of one kind: none has to have more of the layers than another.
  bool are_alike(const std::vector<Device*>& set) const {
    const std::vector<size_t> kinds = DeviceKinds(set, scenario_.machine).exchangeable(set);
    return std::all_of(kinds.begin(), kinds.end(), [&](size_t kind) { return kind == kinds.front(); });
  }

  /// nullptr: it is not possible.
  const Prediction* consider(const Candidate& candidate) {
    try {
      considered_ = scenario_.predict(candidate);
      add(considered_);
      return &considered_;
    } catch (const InvalidArgument&) {
      refusal_ = std::current_exception();
      return nullptr;
    }
  }

  void add(const Prediction& prediction) {
    const std::string key = prediction.candidate.devices() + " " + prediction.split_key;
    if (known_.insert(key).second) found_.push_back(prediction);
  }

  const Scenario& scenario_;
  const RecommendOptions& options_;
  std::vector<Prediction> found_;
  std::map<std::string, double> alone_;  ///< ShareSearch::alone
  Prediction considered_;                ///< the latest
  std::set<std::string> known_;
  std::exception_ptr refusal_;
};

/// "12 all_reduce and 1 all_gather".
std::string counts_text(const PhasePrediction& phase) {
  std::vector<std::pair<Collective, int64_t>> counts;
  for (const tuning::CollectiveTime& one : phase.collectives) {
    const auto known = std::find_if(counts.begin(), counts.end(), [&](const auto& c) { return c.first == one.kind; });
    known == counts.end() ? void(counts.emplace_back(one.kind, one.count)) : void(known->second += one.count);
  }
  std::vector<std::string> parts;
  for (const auto& [kind, count] : counts) parts.push_back(fmt::format("{} {}", count, name_of(kind)));
  return fmt::format("{}", fmt::join(parts, " and "));
}

/// What it is that costs a candidate time beside computing.
std::string costs_text(const Prediction& prediction, Objective objective) {
  const bool prompt = objective == Objective::kPrompt || !prediction.generation;
  const std::optional<PhasePrediction>& phase = prompt ? prediction.prompt : prediction.generation;
  if (!phase) return {};
  const double runs = prompt ? 1 : static_cast<double>(prediction.workload.generate);
  const double all = phase->seconds / runs;
  const char* what = prompt ? "prompt" : "token";
  std::vector<std::string> parts;
  if (phase->collective_count() > 0) {
    parts.push_back(fmt::format("{} per {} take {:.3g} of {:.3g} ms", counts_text(*phase), what,
                                phase->communication() * 1e3, all * 1e3));
  }
  if (phase->copies > 0.01 * all) {
    parts.push_back(
        fmt::format("copies between devices take {:.3g} of {:.3g} ms per {}", phase->copies * 1e3, all * 1e3, what));
  }
  if (phase->imbalance > 0.1) {
    parts.push_back(fmt::format("a device waits for others {:.0f} % of the time", phase->imbalance * 100));
  }
  return fmt::format("{}", fmt::join(parts, ", and "));
}

std::string name_in_text(const Prediction& one) {
  return one.candidate.device_count() == 1 ? one.candidate.devices() + " alone" : one.candidate.name();
}

/// "1.20x faster than CPU0,CPU1 tensor even", "as fast as it".
std::string than_text(const Prediction& winner, const Prediction& other, Objective objective, bool why = true) {
  const double factor = seconds_of(other, objective) / seconds_of(winner, objective);
  const std::string text = factor < 1.005 ? fmt::format("as fast as {}", name_in_text(other))
                                          : fmt::format("{:.2f}x faster than {}", factor, name_in_text(other));
  const std::string costs = why ? costs_text(other, objective) : "";
  return costs.empty() ? text : text + ": " + costs;
}

std::string faster_text(const Prediction& winner, const Prediction& other, Objective objective, bool why) {
  return fmt::format("{} is predicted {}", name_in_text(winner), than_text(winner, other, objective, why));
}

std::string reason_of(const std::vector<Prediction>& sorted, Objective objective) {
  const Prediction& best = sorted.front();
  if (!best.fits)
    return best.candidate.name() + " is the fastest that runs, with weights read from the disk for every token";
  size_t most = 0;
  for (const Prediction& one : sorted) most = std::max(most, one.candidate.device_count());
  if (most == 1) {
    const bool has_rival = sorted.size() > 1 && sorted[1].fits;
    if (has_rival) return faster_text(best, sorted[1], objective, false);
    return best.candidate.devices() + (sorted.size() == 1 ? " is the only device" : " is the only device that it fits");
  }
  const auto first_of = [&](size_t devices, std::optional<models::SplitMode> mode) -> const Prediction* {
    for (const Prediction& one : sorted) {
      if (!one.fits || one.candidate.device_count() != devices) continue;
      if (!mode || one.candidate.mode == *mode) return &one;
    }
    return nullptr;
  };
  if (best.candidate.device_count() == most) {
    if (const Prediction* one = first_of(1, {})) return faster_text(best, *one, objective, false);
    return best.candidate.name() + " is the fastest that fits; no device can do it alone";
  }
  const Prediction* all = first_of(most, {});
  if (all == nullptr) return best.candidate.name() + " is the fastest that fits";
  std::string text = faster_text(best, *all, objective, true);
  // Layers divided are often about as fast as one device: what acting as one would cost is told too.
  const Prediction* as_one = first_of(most, models::SplitMode::kTensor);
  if (as_one != nullptr && as_one != all) text += "; " + than_text(best, *as_one, objective);
  return text;
}

/// Candidates that fit by speed, then those that read from the disk, then the others by the bytes that they lack.
void sort(std::vector<Prediction>& candidates, Objective objective) {
  const auto lacking = [](const Prediction& one) {
    int64_t bytes = 0;
    for (const models::DeviceUse& use : one.memory) bytes += std::min<int64_t>(0, margin_bytes(use));
    return -bytes;
  };
  std::stable_sort(candidates.begin(), candidates.end(), [&](const Prediction& a, const Prediction& b) {
    if (a.fits != b.fits) return a.fits;
    if (a.from_disk != b.from_disk) return a.from_disk;
    const bool runs = a.fits || a.from_disk;
    if (!runs && lacking(a) != lacking(b)) return lacking(a) < lacking(b);
    return seconds_of(a, objective) < seconds_of(b, objective);
  });
}

}  // namespace

std::vector<std::vector<Device*>> useful_sets(std::span<Device* const> devices, const machine::MachineModel& machine) {
  std::vector<std::vector<Device*>> sets;
  if (devices.size() > kMostDevicesForSets) {
    sets = first_sets(devices, machine);
  } else {
    const DeviceKinds kinds(devices, machine);
    std::set<std::string> known;
    for (size_t mask = 1; mask < size_t{1} << devices.size(); ++mask) {
      std::vector<Device*> set;
      for (size_t i = 0; i < devices.size(); ++i) {
        if ((mask >> i & 1) != 0) set.push_back(devices[i]);
      }
      if (known.insert(kinds.of(set)).second) sets.push_back(std::move(set));
    }
    if (sets.size() > kMostSets) sets = first_sets(devices, machine);
  }
  std::stable_sort(sets.begin(), sets.end(), [](const auto& a, const auto& b) { return a.size() < b.size(); });
  return sets;
}

Recommendation recommend(const Scenario& scenario, const models::DeviceGroups& groups,
                         const RecommendOptions& options) {
  require_work(scenario.workload, options.objective);
  Recommendation out;
  Comparison comparison(scenario, options);
  out.candidates = comparison.run(groups);
  sort(out.candidates, options.objective);
  const auto leaves_some_out = [&](const Prediction& best) {
    return best.fits && best.candidate.device_count() < all_of(groups).size();
  };
  if (!out.candidates.empty() && leaves_some_out(out.candidates.front())) {
    for (Prediction& one : comparison.all_taking_part(groups)) out.candidates.push_back(std::move(one));
    sort(out.candidates, options.objective);
  }
  if (out.candidates.empty()) return out;
  const Device* host = host_beside(all_of(groups), scenario.placement);
  const bool knows_host =
      host != nullptr && std::any_of(scenario.machine.devices.begin(), scenario.machine.devices.end(),
                                     [&](const auto& device) { return device.name == host->name(); });
  if (!out.candidates.front().fits && knows_host) {
    for (Prediction& one : comparison.with_host(groups)) out.candidates.push_back(std::move(one));
    sort(out.candidates, options.objective);
  }
  const Prediction& first = out.candidates.front();
  if (first.fits || first.from_disk) {
    out.best = 0;
    out.reason = reason_of(out.candidates, options.objective);
  }
  if (!first.fits) {
    out.remedies = remedies(scenario, out.candidates.front(), groups, ways_of(scenario, groups));
  }
  return out;
}

}  // namespace shoal::tuning
