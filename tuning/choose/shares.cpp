// Searches for the fastest shares, and computes shares from the free memory of the devices.
#include <algorithm>
#include <cmath>
#include <limits>
#include <map>
#include <numeric>
#include <set>
#include <tuple>

#include "base/error.h"
#include "tuning/choose/dimensions.h"

namespace shoal::tuning {
namespace {

using Shares = std::vector<double>;

/// Number of times that shares are clipped to the memory. One clipping is not enough, because rounding to units adds a
/// few bytes on some devices.
constexpr int kClippings = 4;
/// A move transfers a fraction of the model. The search tries this number of fractions. The first fraction is about a
/// quarter. Each further fraction is half of the previous fraction.
constexpr int kHalvings = 6;
/// Limits of the number of predictions: per sharer, and in total. A sharer is a device or group with one share.
constexpr int kForEach = 12;
constexpr int kMost = 96;
/// Smallest relative gain that counts. Smaller gains are rounding errors.
constexpr double kGain = 1e-4;

bool has(const std::vector<Device*>& group, const std::string& name) {
  return std::any_of(group.begin(), group.end(), [&](const Device* device) { return device->name() == name; });
}

/// Free memory of each sharer: the spare bytes of its tightest device, times its number of devices.
Shares free_memory_of(std::span<const models::DeviceUse> uses, const models::DeviceGroups& sharers) {
  Shares free_memory;
  for (const std::vector<Device*>& group : sharers) {
    double room = std::numeric_limits<double>::infinity();
    for (const models::DeviceUse& use : uses) {
      if (has(group, use.device)) room = std::min(room, static_cast<double>(spare_bytes(use)));
    }
    if (!std::isfinite(room)) room = static_cast<double>(group.front()->memory().free);  // the group stores nothing yet
    free_memory.push_back(room * static_cast<double>(group.size()));
  }
  return free_memory;
}

double divided_bytes(std::span<const models::DeviceUse> uses) {
  double bytes = 0;
  for (const models::DeviceUse& use : uses) bytes += static_cast<double>(use.use.weights + use.use.cache);
  return bytes;
}

/// Searches for the fastest shares and stores the best verdict.
class ShareSearch {
 public:
  ShareSearch(Chooser& chooser, const Choice& choice, const ShareLimits& limits)
      : chooser_(chooser), choice_(choice), sharers_(choice.sharers()), most_(limits.predictions) {
    if (most_ <= 0) most_ = std::min(kMost, kForEach * (static_cast<int>(sharers_.size()) + 1));
    if (choice.mode == models::SplitMode::kTensor && choice.groups.size() == 1) {
      kinds_ = exchangeable(choice.groups.front(), chooser.machine());
    }
    if (limits.all_take_part) least_ = least_share();
  }

  FoundShares run() {
    FoundShares out;
    consider({});
    out.even = best_;
    const bool are_even_best =
        best_.fits && !kinds_.empty() &&
        std::all_of(kinds_.begin(), kinds_.end(), [&](size_t kind) { return kind == kinds_[0]; });
    if (sharers_.size() > 1 && !are_even_best && best_.may_fit()) {
      Shares shares = raised(shares_by_speed(chooser_, choice_));
      for (int i = 0; i < kClippings; ++i) {
        const Verdict one = consider(shares);
        if (one.fits) break;
        shares = raised(clipped_by_memory(one));
      }
      if (!best_.fits) consider(raised(clipped_by_memory(out.even)));
      climb();
    }
    out.best = best_;
    out.best.choice.shares = simplest_shares(chooser_, best_.choice);
    out.predictions = static_cast<int>(seen_.size());
    return out;
  }

 private:
  /// kLayer: the share of one layer. kTensor: the share of one unit of the tensor with the most units, without the
  /// vocabulary and the experts. If there are fewer layers or units than sharers, returns an even share.
  double least_share() const {
    const models::Model& model = chooser_.model();
    int64_t most = model.hparams.layers;
    if (choice_.mode == models::SplitMode::kTensor) {
      most = 1;
      for (const auto& [group, units] : split_units(model.hparams, model.split_tensors())) {
        const bool is_of_layer = group != models::CutGroup::kVocabulary && group != models::CutGroup::kExperts;
        if (is_of_layer) most = std::max(most, units);
      }
    }
    return 1 / std::max(static_cast<double>(most), static_cast<double>(sharers_.size()));
  }

  /// Raises small shares to the least share and reduces the larger shares by the same total.
  Shares raised(Shares shares) const {
    double more = 0, over = 0;
    for (const double share : shares) {
      more += std::max(0.0, least_ - share);
      over += std::max(0.0, share - least_);
    }
    if (more <= 0 || over <= 0) return shares;
    for (double& share : shares) share = std::max(least_, share - std::max(0.0, share - least_) * more / over);
    return shares;
  }

  bool exhausted() const { return static_cast<int>(seen_.size()) >= most_; }

  Verdict consider(const Shares& shares) {
    Choice one = choice_;
    one.shares = shares;
    Verdict verdict = chooser_.judge(one);
    if (seen_.empty() || is_better(verdict, best_, chooser_.asked().objective, kGain)) best_ = verdict;
    const bool is_new = seen_.insert(verdict.split_key).second;
    if (is_new && chooser_.watch().progress) {
      const auto done = static_cast<int>(seen_.size());
      chooser_.watch().progress(done, std::max(done, most_));  // the first predictions may exceed the limit
    }
    return verdict;
  }

  void climb() {
    // With at least 4 query heads, the first moves transfer whole heads.
    const models::Model& model = chooser_.model();
    const auto units = split_units(model.hparams, model.split_tensors());
    const auto heads = units.find(models::CutGroup::kQueryHeads);
    const double count = heads == units.end() ? 0 : static_cast<double>(heads->second);
    double part = count >= 4 ? std::ceil(count / 4) / count : 0.25;
    for (int i = 0; i < kHalvings; ++i, part /= 2) {
      while (!exhausted() && step(part)) {
      }
    }
  }

  /// Tries to move the fraction `part` of the model from one sharer to another sharer. Pairs of sharers with the
  /// largest difference in busy time are tried first. Returns true if a move improves the verdict.
  bool step(double part) {
    const Shares from_shares = best_.choice.shares.empty() ? even_shares(sharers_.size()) : best_.choice.shares;
    const std::string before = best_.split_key;
    for (const auto& [from, to] : moves(from_shares)) {
      if (exhausted()) break;
      Shares shares = from_shares;
      const double moved = std::min(part, shares[from] - least_);
      shares[from] -= moved;
      shares[to] += moved;
      if (shares[from] < 1e-9) shares[from] = 0;
      try {
        consider(normalised(shares));
      } catch (const InvalidArgument&) {
        if (chooser_.asked().placement.overrides.empty()) throw;
        continue;  // a device would have a share of 0 although a tensor override names it
      }
      if (best_.split_key != before) return true;
    }
    return false;
  }

  std::vector<std::pair<size_t, size_t>> moves(const Shares& shares) const {
    const Shares busy = seconds_by_sharer();
    std::vector<std::pair<size_t, size_t>> out;
    for (size_t from = 0; from < shares.size(); ++from) {
      for (size_t to = 0; to < shares.size(); ++to) {
        if (from != to && shares[from] > least_ + 1e-9) out.emplace_back(from, to);
      }
    }
    std::stable_sort(out.begin(), out.end(), [&](const auto& a, const auto& b) {
      return busy[a.first] - busy[a.second] > busy[b.first] - busy[b.second];
    });
    if (!best_.fits || kinds_.empty()) return out;
    // Moves between interchangeable devices with equal shares are equivalent. So the search tries only one of these
    // moves.
    std::set<std::tuple<size_t, double, size_t, double>> seen;
    std::erase_if(out, [&](const auto& move) {
      return !seen.emplace(kinds_[move.first], shares[move.first], kinds_[move.second], shares[move.second]).second;
    });
    return out;
  }

  Shares seconds_by_sharer() const {
    Shares seconds(sharers_.size());
    const bool prompt = chooser_.asked().objective == Objective::kPrompt || !best_.generation;
    const std::optional<PhasePrediction>& phase = prompt ? best_.prompt : best_.generation;
    for (size_t i = 0; phase && i < phase->devices.size(); ++i) {
      for (size_t s = 0; s < sharers_.size(); ++s) {
        if (has(sharers_[s], phase->devices[i])) seconds[s] += phase->ranks[i].compute;
      }
    }
    return seconds;
  }

  Chooser& chooser_;
  const Choice& choice_;
  const models::DeviceGroups sharers_;
  int most_;
  std::vector<size_t> kinds_;   ///< kind number of each device; interchangeable devices have equal numbers; empty: all
                                ///< devices count as different
  std::set<std::string> seen_;  ///< split keys of all predicted choices
  double least_ = 0;            ///< lower limit of each share
  Verdict best_;
};

}  // namespace

FoundShares fastest_shares(Chooser& chooser, const Choice& choice, const ShareLimits& limits) {
  Choice even = choice;
  even.shares.clear();
  return ShareSearch(chooser, even, limits).run();
}

std::vector<double> shares_by_speed(Chooser& chooser, const Choice& choice) {
  const auto speeds_with = [&](Chooser& alone) {
    const models::DeviceGroups sharers = choice.sharers();
    const std::vector<size_t> first = alike_sets(sharers, chooser.machine());
    Shares speeds;
    for (size_t s = 0; s < sharers.size(); ++s) {
      if (first[s] < s) {
        speeds.push_back(speeds[first[s]]);
        continue;
      }
      Choice one = acting_as_one(sharers[s]);
      one.host = choice.host;
      one.context = choice.context;
      speeds.push_back(1 / seconds_of(alone.judge(one), chooser.asked().objective));
    }
    return normalised(speeds);
  };
  try {
    return speeds_with(chooser);
  } catch (const InvalidArgument&) {
    if (chooser.asked().placement.overrides.empty()) throw;
  }
  // Tensor overrides contain device names. A name is invalid if a different device runs alone.
  Asked plain = chooser.asked();
  plain.placement.overrides.clear();
  Chooser other(chooser.model(), plain, chooser.watch());
  return speeds_with(other);
}

// Each sharer stores a fraction of the divided tensors. If a sharer has too little memory, its fraction shrinks by the
// number of missing bytes. The other sharers receive the removed bytes in proportion to their free memory.
std::vector<double> clipped_by_memory(const Verdict& verdict) {
  const models::DeviceGroups sharers = verdict.choice.sharers();
  Shares shares = verdict.choice.shares.empty() ? even_shares(sharers.size()) : normalised(verdict.choice.shares);
  const double all = divided_bytes(verdict.memory);
  if (all <= 0) return shares;
  const Shares free_memory = free_memory_of(verdict.memory, sharers);
  double taken = 0, free = 0;
  for (size_t s = 0; s < shares.size(); ++s) {
    const double less = std::min(shares[s], std::max(0.0, -free_memory[s] / all));
    shares[s] -= less;
    taken += less;
    free += std::max(0.0, free_memory[s] / all);
  }
  for (size_t s = 0; s < shares.size() && free > 0; ++s) shares[s] += taken * std::max(0.0, free_memory[s] / all) / free;
  return normalised(shares);
}

std::vector<double> shares_by_free_memory(Chooser& chooser, const Choice& choice, const UsesOf& uses_of) {
  const models::DeviceGroups sharers = choice.sharers();
  Choice one = choice;
  one.shares = even_shares(sharers.size());
  if (sharers.size() < 2) return one.shares;
  if (choice.mode == models::SplitMode::kLayer) return layers_by_free_memory(chooser, one, uses_of(one));
  const std::vector<models::DeviceUse> uses = uses_of(one);
  const Shares free_memory = free_memory_of(uses, sharers);
  const double part = divided_bytes(uses) / static_cast<double>(sharers.size());
  Shares parts;
  for (const double room : free_memory) parts.push_back(std::max(0.0, room + part));
  if (std::accumulate(parts.begin(), parts.end(), 0.0) > 0) one.shares = normalised(parts);
  return one.shares;
}

}  // namespace shoal::tuning
