#include "models/recommend.h"

#include <fmt/format.h>

#include <algorithm>
#include <cmath>
#include <exception>
#include <set>

#include "graph/error.h"
#include "models/device_kinds.h"

namespace shoal::models {
namespace {

constexpr size_t kMostSets = 64;
constexpr size_t kMostDevicesForSets = 12;
/// Of all sets together, and at least of each.
constexpr int kManyPredictions = 640;
constexpr int kFewPredictions = 16;

/// The first 1, 2, 3, ... devices by bandwidth.
std::vector<std::vector<Device*>> first_sets(std::span<Device* const> devices, const meta::MachineModel& machine) {
  const auto model_of = [&](const Device& device) -> const meta::DeviceModel& {
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

/// Predictions of everything that is worth looking at.
class Comparison {
 public:
  Comparison(const Scenario& scenario, const RecommendOptions& options) : scenario_(scenario), options_(options) {}

  std::vector<Prediction> run(const DeviceGroups& groups) {
    std::vector<Device*> devices;
    for (const auto& group : groups) devices.insert(devices.end(), group.begin(), group.end());
    const auto sets = useful_sets(devices, scenario_.machine);
    // With many sets less is gained by looking closely at each.
    const int part = std::max(kFewPredictions, kManyPredictions / static_cast<int>(sets.size()));
    const int predictions = std::min(options_.predictions, part);
    for (size_t i = 0; i < sets.size(); ++i) {
      const auto tell = [&] {
        if (options_.progress) options_.progress(static_cast<int>(i), static_cast<int>(sets.size()));
      };
      tell();
      consider_set(sets[i], {options_.objective, predictions, [&](int, int) { tell(); }});
    }
    const bool grouped = groups.size() > 1 && groups.size() < devices.size();
    if (grouped) consider({groups, SplitMode::kLayer, {}});
    if (found_.empty() && refusal_) std::rethrow_exception(refusal_);
    return std::move(found_);
  }

 private:
  void consider_set(const std::vector<Device*>& set, const ShareSearch& search) {
    if (set.size() == 1) return consider({{set}, SplitMode::kTensor, {}});
    try {
      const BestShares shares = best_shares(scenario_, {{set}, SplitMode::kTensor, {}}, search);
      add(shares.even);
      if (has_all(shares.best.candidate.shares)) add(shares.best);
    } catch (const InvalidArgument&) {
      refusal_ = std::current_exception();
    }
    if (static_cast<int64_t>(set.size()) > scenario_.model.hparams.layers) return;  // some would have none
    Candidate layers{{}, SplitMode::kLayer, {}};
    for (Device* device : set) layers.groups.push_back({device});
    consider(layers);
    layers.shares = shares_of_layers(layers);
    if (!layers.shares.empty() && has_all(layers.shares)) consider(layers);
  }

  /// A device without a share is no help; sets without it are looked at for themselves.
  static bool has_all(const std::vector<double>& shares) {
    return std::find(shares.begin(), shares.end(), 0.0) == shares.end();
  }

  std::vector<double> shares_of_layers(Candidate layers) {
    try {
      layers.shares = shares_by_speed(scenario_, layers, options_.objective);
      const Prediction prediction = scenario_.predict(layers);
      if (!prediction.fits) layers.shares = clipped_by_memory(prediction);
      return simplest_shares(scenario_, layers);
    } catch (const InvalidArgument&) {
      refusal_ = std::current_exception();
      return {};
    }
  }

  void consider(const Candidate& candidate) {
    try {
      add(scenario_.predict(candidate));
    } catch (const InvalidArgument&) {
      refusal_ = std::current_exception();
    }
  }

  void add(const Prediction& prediction) {
    const std::string key = prediction.candidate.devices() + " " + prediction.split_key;
    if (known_.insert(key).second) found_.push_back(prediction);
  }

  const Scenario& scenario_;
  const RecommendOptions& options_;
  std::vector<Prediction> found_;
  std::set<std::string> known_;
  std::exception_ptr refusal_;
};

/// "12 all_reduce and 1 all_gather".
std::string counts_text(const PhasePrediction& phase) {
  std::vector<std::pair<Op, int64_t>> counts;
  for (const meta::CollectiveTime& one : phase.collectives) {
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

std::string faster_text(const Prediction& winner, const Prediction& other, Objective objective, bool why) {
  const double factor = seconds_of(other, objective) / seconds_of(winner, objective);
  const std::string name =
      winner.candidate.device_count() == 1 ? winner.candidate.devices() + " alone" : winner.candidate.name();
  const std::string rival =
      other.candidate.device_count() == 1 ? other.candidate.devices() + " alone" : other.candidate.name();
  std::string text = factor < 1.005 ? fmt::format("{} is predicted as fast as {}", name, rival)
                                    : fmt::format("{} is predicted {:.2f}x faster than {}", name, factor, rival);
  const std::string costs = why ? costs_text(other, objective) : "";
  return costs.empty() ? text : text + ": " + costs;
}

std::string reason_of(const std::vector<Prediction>& sorted, Objective objective) {
  const Prediction& best = sorted.front();
  size_t most = 0;
  for (const Prediction& one : sorted) most = std::max(most, one.candidate.device_count());
  if (most == 1)
    return sorted.size() == 1 ? best.candidate.devices() + " is the only device"
                              : faster_text(best, sorted[1], objective, false);
  // Of what divides layers little is to be said: it is about as fast as one device.
  const auto first_of = [&](size_t devices) -> const Prediction* {
    const Prediction* first = nullptr;
    for (const Prediction& one : sorted) {
      if (!one.fits || one.candidate.device_count() != devices) continue;
      if (one.candidate.mode == SplitMode::kTensor) return &one;
      if (first == nullptr) first = &one;
    }
    return first;
  };
  const Prediction* all = first_of(most);
  if (best.candidate.device_count() < most && all != nullptr) return faster_text(best, *all, objective, true);
  if (best.candidate.device_count() < most) return best.candidate.name() + " is the fastest that fits";
  if (const Prediction* one = first_of(1)) return faster_text(best, *one, objective, false);
  return best.candidate.name() + " is the fastest that fits; no device has enough memory alone";
}

}  // namespace

std::vector<std::vector<Device*>> useful_sets(std::span<Device* const> devices, const meta::MachineModel& machine) {
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

Recommendation recommend(const Scenario& scenario, const DeviceGroups& groups, const RecommendOptions& options) {
  Recommendation out;
  out.candidates = Comparison(scenario, options).run(groups);
  const auto lacking = [](const Prediction& one) {
    int64_t bytes = 0;
    for (const DeviceUse& use : one.memory) bytes += std::min<int64_t>(0, margin_bytes(use));
    return -bytes;
  };
  std::stable_sort(out.candidates.begin(), out.candidates.end(), [&](const Prediction& a, const Prediction& b) {
    if (a.fits != b.fits) return a.fits;
    if (!a.fits && lacking(a) != lacking(b)) return lacking(a) < lacking(b);
    return seconds_of(a, options.objective) < seconds_of(b, options.objective);
  });
  if (out.candidates.empty()) return out;
  if (out.candidates.front().fits) {
    out.best = 0;
    out.reason = reason_of(out.candidates, options.objective);
  } else {
    out.remedies = remedies(scenario, out.candidates.front());
    out.reason = "nothing fits: " + to_string(*out.remedies);
  }
  return out;
}

}  // namespace shoal::models
