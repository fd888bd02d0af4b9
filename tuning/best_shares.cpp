#include "tuning/best_shares.h"

#include <algorithm>
#include <cmath>
#include <limits>
#include <map>
#include <numeric>
#include <set>
#include <tuple>

#include "base/error.h"
#include "tuning/device_kinds.h"
#include "tuning/fit.h"

namespace shoal::tuning {
namespace {

/// Clipping is repeated because rounding to units puts a little more here and there.
constexpr int kClippings = 4;
/// The parts of everything that are moved, from about a quarter down.
constexpr int kHalvings = 6;
/// Predictions: two shares are found with few, many have many ways to be moved.
constexpr int kForEach = 12;
constexpr int kMost = 96;
/// A plan must be predicted so much faster to be preferred: less is rounding.
constexpr double kGain = 1e-4;

double bytes_of(const models::DeviceUse& use) {
  return static_cast<double>(use.use.weights + use.use.cache);
}

std::vector<double> normalised(std::vector<double> shares) {
  const double sum = std::accumulate(shares.begin(), shares.end(), 0.0);
  for (double& share : shares) share = sum > 0 ? share / sum : 1.0 / static_cast<double>(shares.size());
  return shares;
}

size_t share_count(const Candidate& candidate) {
  return candidate.mode == models::SplitMode::kLayer ? candidate.groups.size() : candidate.device_count();
}

/// Names of the devices that each share is for.
std::vector<std::vector<std::string>> sharers(const Candidate& candidate) {
  std::vector<std::vector<std::string>> out;
  for (const auto& group : candidate.groups) {
    for (const Device* device : group) {
      if (candidate.mode == models::SplitMode::kTensor || device == group.front()) out.emplace_back();
      out.back().push_back(device->name());
    }
  }
  return out;
}

std::vector<double> even_shares(size_t count) {
  return std::vector<double>(count, 1.0 / static_cast<double>(count));
}

/// Bytes that are missing on all devices together.
double lacking(const Prediction& prediction) {
  double bytes = 0;
  for (const models::DeviceUse& use : prediction.memory)
    bytes += std::max(0.0, -static_cast<double>(margin_bytes(use)));
  return bytes;
}

/// The search. Owns what was predicted so far.
class Search {
 public:
  Search(const Scenario& scenario, const Candidate& candidate, const ShareSearch& options)
      : scenario_(scenario), candidate_(candidate), options_(options), names_(sharers(candidate)) {
    const int worth = std::min(kMost, kForEach * (static_cast<int>(names_.size()) + 1));
    if (options_.predictions <= 0) options_.predictions = worth;
    if (candidate.mode == models::SplitMode::kTensor && candidate.groups.size() == 1) {
      kinds_ = DeviceKinds(candidate.groups.front(), scenario.machine).exchangeable(candidate.groups.front());
    }
    if (options_.all_take_part) least_ = least_share();
  }

  BestShares run() {
    const std::vector<double> even = even_shares(names_.size());
    BestShares out;
    consider({});
    out.even = best_;
    if (names_.size() > 1 && !is_best_even() && may_fit(best_)) {
      std::vector<double> shares = raised(shares_by_speed(scenario_, candidate_, options_.objective, options_.alone));
      for (int i = 0; i < kClippings; ++i) {
        const Prediction one = consider(shares);
        if (one.fits) break;
        shares = raised(clipped_by_memory(one));
      }
      if (!best_.fits) consider(raised(clipped_by_memory(out.even)));
      climb();
    }
    out.best = best_;
    out.best.candidate.shares = simplest_shares(scenario_, best_.candidate);
    out.predictions = static_cast<int>(known_.size());
    return out;
  }

 private:
  /// Between devices that are alike, each as large a part as the others is the fastest, if that fits.
  bool is_best_even() const {
    return best_.fits && !kinds_.empty() &&
           std::all_of(kinds_.begin(), kinds_.end(), [&](size_t kind) { return kind == kinds_.front(); });
  }

  /// What one unit is, where there are most of them; an even share where there are fewer than sharers.
  double least_share() const {
    const models::Model& model = scenario_.model;
    int64_t most = model.hparams.layers;
    if (candidate_.mode == models::SplitMode::kTensor) {
      most = 1;
      for (const auto& [group, units] : split_units(model.hparams, model.split_tensors())) {
        const bool is_of_layer = group != models::CutGroup::kVocabulary && group != models::CutGroup::kExperts;
        if (is_of_layer) most = std::max(most, units);
      }
    }
    return 1 / std::max(static_cast<double>(most), static_cast<double>(names_.size()));
  }

  /// With at least the least share for each, which comes from those that have more.
  std::vector<double> raised(std::vector<double> shares) const {
    double more = 0, over = 0;
    for (const double share : shares) {
      more += std::max(0.0, least_ - share);
      over += std::max(0.0, share - least_);
    }
    if (more <= 0 || over <= 0) return shares;
    for (double& share : shares) share = std::max(least_, share - std::max(0.0, share - least_) * more / over);
    return shares;
  }

  bool exhausted() const { return static_cast<int>(known_.size()) >= options_.predictions; }

  bool is_better(const Prediction& one, const Prediction& other) const {
    if (one.fits != other.fits) return one.fits;
    if (!one.fits && lacking(one) != lacking(other)) return lacking(one) < lacking(other);
    return seconds_of(one, options_.objective) < seconds_of(other, options_.objective) * (1 - kGain);
  }

  /// Predicts, once for each split, and keeps the best.
  Prediction consider(const std::vector<double>& shares) {
    Candidate candidate = candidate_;
    candidate.shares = shares;
    const models::Placement placement(scenario_.model, candidate.groups, placement_of(candidate, scenario_));
    const std::string key = split_key(scenario_.model, placement);
    const auto known = known_.find(key);
    if (known != known_.end()) return known->second;
    if (options_.progress) options_.progress(static_cast<int>(known_.size()), options_.predictions);
    const models::ModelPlan plan(scenario_.model, placement, scenario_.session, scenario_.load, 1);
    Prediction prediction = scenario_.predict(candidate, placement, plan);
    if (known_.empty() || is_better(prediction, best_)) best_ = prediction;
    known_.emplace(key, prediction);
    return prediction;
  }

  void climb() {
    // Whole units of the attention at first, where there are enough of them.
    const auto units = split_units(scenario_.model.hparams, scenario_.model.split_tensors());
    const auto heads = units.find(models::CutGroup::kQueryHeads);
    const double count = heads == units.end() ? 0 : static_cast<double>(heads->second);
    double part = count >= 4 ? std::ceil(count / 4) / count : 0.25;
    for (int i = 0; i < kHalvings; ++i, part /= 2) {
      while (!exhausted() && step(part)) {
      }
    }
  }

  /// Tries to move a part of everything from one device to another, from the busiest to the idlest first; true when
  /// that was better.
  bool step(double part) {
    const std::vector<double> from_shares =
        best_.candidate.shares.empty() ? even_shares(names_.size()) : best_.candidate.shares;
    const std::string before = best_.split_key;
    for (const auto& [from, to] : moves(from_shares)) {
      if (exhausted()) break;
      std::vector<double> shares = from_shares;
      const double moved = std::min(part, shares[from] - least_);
      shares[from] -= moved;
      shares[to] += moved;
      if (shares[from] < 1e-9) shares[from] = 0;
      try {
        consider(normalised(shares));
      } catch (const InvalidArgument&) {
        if (scenario_.placement.overrides.empty()) throw;
        continue;  // a device that tensors were put on has nothing left
      }
      if (best_.split_key != before) return true;
    }
    return false;
  }

  std::vector<std::pair<size_t, size_t>> moves(const std::vector<double>& shares) const {
    const std::vector<double> busy = seconds_by_sharer();
    std::vector<std::pair<size_t, size_t>> out;
    for (size_t from = 0; from < shares.size(); ++from) {
      for (size_t to = 0; to < shares.size(); ++to) {
        if (from != to && shares[from] > least_ + 1e-9) out.emplace_back(from, to);
      }
    }
    std::stable_sort(out.begin(), out.end(), [&](const auto& a, const auto& b) {
      return busy[a.first] - busy[a.second] > busy[b.first] - busy[b.second];
    });
    if (best_.fits && !kinds_.empty()) keep_one_of_alike(out, shares);
    return out;
  }

  /// Between devices that are alike and have equal shares it does not matter which, but for what rounding leaves them.
  void keep_one_of_alike(std::vector<std::pair<size_t, size_t>>& moves, const std::vector<double>& shares) const {
    std::set<std::tuple<size_t, double, size_t, double>> seen;
    std::erase_if(moves, [&](const auto& move) {
      const auto [from, to] = move;
      return !seen.emplace(kinds_[from], shares[from], kinds_[to], shares[to]).second;
    });
  }

  /// How long each is busy in the best plan so far.
  std::vector<double> seconds_by_sharer() const {
    std::vector<double> seconds(names_.size());
    const bool prompt = options_.objective == Objective::kPrompt || !best_.generation;
    const std::optional<PhasePrediction>& phase = prompt ? best_.prompt : best_.generation;
    if (!phase) return seconds;
    for (size_t i = 0; i < phase->devices.size(); ++i) {
      for (size_t s = 0; s < names_.size(); ++s) {
        const bool has = std::find(names_[s].begin(), names_[s].end(), phase->devices[i]) != names_[s].end();
        if (has) seconds[s] += phase->ranks[i].compute;
      }
    }
    return seconds;
  }

  const Scenario& scenario_;
  const Candidate& candidate_;
  ShareSearch options_;
  std::vector<std::vector<std::string>> names_;
  std::vector<size_t> kinds_;  ///< of the devices, the same for those that may be exchanged; empty: none may
  std::map<std::string, Prediction> known_;  ///< by split key
  double least_ = 0;                         ///< share of each
  Prediction best_;
};

}  // namespace

namespace {

/// Of devices as one; of a single device as it was found before.
double seconds_alone(const Scenario& scenario, const std::vector<Device*>& devices, Objective objective,
                     std::map<std::string, double>* before) {
  const bool is_kept = before != nullptr && devices.size() == 1 && scenario.placement.overrides.empty();
  const std::string name = devices.front()->name();
  if (is_kept && before->contains(name)) return before->at(name);
  const double seconds = seconds_of(scenario.predict({{devices}, models::SplitMode::kTensor, {}}), objective);
  if (is_kept) before->emplace(name, seconds);
  return seconds;
}

}  // namespace

bool may_fit(const Prediction& prediction) {
  int64_t margin = 0;
  for (const models::DeviceUse& use : prediction.memory) margin += margin_bytes(use);
  return prediction.fits || margin >= 0;
}

std::vector<double> shares_by_speed(const Scenario& scenario, const Candidate& candidate, Objective objective,
                                    std::map<std::string, double>* alone_before) {
  std::vector<Device*> all;
  for (const auto& group : candidate.groups) all.insert(all.end(), group.begin(), group.end());
  const DeviceKinds kinds(all, scenario.machine);
  const auto speeds_in = [&](const Scenario& alone) {
    std::vector<double> speeds;
    std::map<std::string, double> known;
    const auto add = [&](const std::vector<Device*>& devices) {
      const auto [found, is_new] = known.try_emplace(kinds.of(devices), 0.0);
      if (is_new) found->second = 1 / seconds_alone(alone, devices, objective, alone_before);
      speeds.push_back(found->second);
    };
    for (const auto& group : candidate.groups) {
      if (candidate.mode == models::SplitMode::kLayer) {
        add(group);
      } else {
        for (Device* device : group) add({device});
      }
    }
    return normalised(speeds);
  };
  try {
    return speeds_in(scenario);
  } catch (const InvalidArgument&) {
    if (scenario.placement.overrides.empty()) throw;
  }
  // Some tensors were put on a device that another one by itself is without.
  Scenario plain = scenario;
  plain.placement.overrides.clear();
  return speeds_in(plain);
}

// What a device has is fixed + share * V, where V is what all have together; so the share that it has room for differs
// from the one it has by its margin / V. What is taken from one goes to those with room, in proportion to that.
std::vector<double> clipped_by_memory(const Prediction& prediction) {
  const Candidate& candidate = prediction.candidate;
  const size_t count = share_count(candidate);
  std::vector<double> shares = candidate.shares.empty() ? even_shares(count) : normalised(candidate.shares);
  const auto names = sharers(candidate);
  double all = 0;
  for (const models::DeviceUse& use : prediction.memory) all += bytes_of(use);
  if (all <= 0) return shares;
  std::vector<double> room(count);
  for (size_t s = 0; s < count; ++s) {
    double margin = std::numeric_limits<double>::infinity();
    for (const models::DeviceUse& use : prediction.memory) {
      const bool has = std::find(names[s].begin(), names[s].end(), use.device) != names[s].end();
      if (has) margin = std::min(margin, static_cast<double>(margin_bytes(use)));
    }
    // Of a group each device has an even part.
    room[s] = std::isfinite(margin) ? margin * static_cast<double>(names[s].size()) / all : 0;
  }
  double taken = 0, free = 0;
  for (size_t s = 0; s < count; ++s) {
    const double less = std::min(shares[s], std::max(0.0, -room[s]));
    shares[s] -= less;
    taken += less;
    free += std::max(0.0, room[s]);
  }
  for (size_t s = 0; s < count && free > 0; ++s) shares[s] += taken * std::max(0.0, room[s]) / free;
  return normalised(shares);
}

BestShares best_shares(const Scenario& scenario, const Candidate& candidate, const ShareSearch& search) {
  BestShares found = Search(scenario, candidate, search).run();
  const auto has_choice = [](const std::vector<Device*>& group) { return repack_weights(group); };
  if (found.best.fits || !scenario.load.repack) return found;
  if (std::none_of(candidate.groups.begin(), candidate.groups.end(), has_choice)) return found;
  // As they are in the file weights may need less, or nothing: so they are loaded then.
  Scenario as_they_are = scenario;
  as_they_are.load.repack = false;
  BestShares other = Search(as_they_are, candidate, search).run();
  return other.best.fits ? other : found;
}

}  // namespace shoal::tuning
