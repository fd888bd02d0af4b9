#include "tuning/memory_shares.h"

#include <algorithm>
#include <cmath>
#include <limits>

#include "tuning/best_shares.h"
#include "tuning/fit.h"

namespace shoal::tuning {
namespace {

using Shares = std::vector<double>;

/// What devices have room for together is estimated so well; who is further behind is not looked at closely.
constexpr double kEstimate = 1.03;
/// Most steps by which shares are bettered, and most changes in each.
constexpr int kSteps = 4;
constexpr int kChanges = 3;
/// A part of the context that is worth looking for.
constexpr int64_t kWorthSeeking = 400;

bool has(const std::vector<Device*>& group, const models::DeviceUse& use) {
  return std::any_of(group.begin(), group.end(), [&](const Device* device) { return device->name() == use.device; });
}

}  // namespace

MemoryShares::MemoryShares(const Scenario& scenario, const Candidate& candidate, const models::SessionOptions& session)
    : scenario_(scenario), candidate_(candidate), session_(session) {
  candidate_.shares.clear();
  if (candidate_.mode == models::SplitMode::kLayer) {
    sharers_ = candidate_.groups;
  } else {
    for (const auto& group : candidate_.groups) {
      for (Device* device : group) sharers_.push_back({device});
    }
  }
  const int64_t layers = scenario.model.hparams.layers, here = scenario.placement.device_layers;
  layers_ = std::max<int64_t>(1, here < 0 ? layers : std::min(here, layers));
}

std::optional<MemoryShares::Fit> MemoryShares::largest(int64_t asked, int64_t more_than) const {
  const std::vector<models::DeviceUse> uses = memory(asked, {});
  // Not even a single token: what it takes without a cache is too much already.
  if (possible_context(uses, asked) < 1) return std::nullopt;
  if (more_than > 0 && possible_context(uses, asked) * kEstimate <= static_cast<double>(more_than)) return std::nullopt;
  if (sharers_.size() < 2) return fit_of({}, asked);
  std::optional<Fit> best = fit_of(balanced(uses, even()), asked);
  if (!best || fits(memory(best->context, {}))) {
    std::optional<Fit> simple = fit_of({}, asked);
    if (!best || (simple && simple->context >= best->context)) best = std::move(simple);
  }
  for (int step = 0; step < kSteps && improve(best, uses, asked); ++step) {
  }
  if (!best || best->shares.empty()) return best;
  // More digits are not worth a few tokens.
  const std::optional<Fit> shorter = fit_of(rounded(best->shares), asked);
  return shorter && shorter->context >= best->context - best->context / kWorthSeeking ? shorter : best;
}

Shares MemoryShares::balanced(int64_t context) const {
  Shares shares = even();
  for (int i = 0; i < 2 && sharers_.size() > 1; ++i) shares = balanced(memory(context, shares), shares);
  return rounded(shares);
}

std::vector<models::DeviceUse> MemoryShares::memory(int64_t context, const Shares& shares) const {
  if (scenario_.poll) scenario_.poll();
  models::SessionOptions session = session_;
  session.context = context;
  return models::ModelPlan(scenario_.model, placement(shares), session, scenario_.load, 1).memory;
}

Candidate MemoryShares::with(const Shares& shares) const {
  Candidate candidate = candidate_;
  candidate.shares = shares;
  candidate.shares = simplest_shares(scenario_, candidate);
  const auto differs = [&](double share) { return share != candidate.shares.front(); };
  if (std::none_of(candidate.shares.begin(), candidate.shares.end(), differs)) candidate.shares.clear();
  return candidate;
}

bool MemoryShares::needs_no_repack(const Fit& fit) const {
  return scenario_.load.repack && !fits(memory(fit.context, fit.shares));
}

models::Placement MemoryShares::placement(const Shares& shares) const {
  Candidate candidate = candidate_;
  candidate.shares = shares;
  return {scenario_.model, candidate.groups, placement_of(candidate, scenario_)};
}

std::optional<MemoryShares::Fit> MemoryShares::fit_of(const Shares& shares, int64_t asked) const {
  if (scenario_.poll) scenario_.poll();
  const FitOptions any{.least_context = std::min(asked, kContextStep)};
  models::SessionOptions session = session_;
  session.context = asked;
  const auto context = largest_context(scenario_.model, placement(shares), session, scenario_.load, any);
  return context ? std::optional(Fit{*context, shares}) : std::nullopt;
}

/// Shares that have room for a little more than the best so far; false where none are found. `uses`: of even shares.
bool MemoryShares::improve(std::optional<Fit>& best, const std::vector<models::DeviceUse>& uses, int64_t asked) const {
  const int64_t before = best ? best->context : 0;
  const auto possible = static_cast<int64_t>(possible_context(uses, asked));
  const int64_t target = best ? std::min(asked, before + std::max(kContextStep, before / kWorthSeeking)) : possible / 2;
  if (target < 1 || target <= before || target > possible) return false;
  Shares shares = best ? best->shares : balanced(uses, even());
  if (shares.empty()) shares = even();
  for (int i = 0; i < kChanges; ++i) {
    const std::vector<models::DeviceUse> now = memory(target, shares);
    if (i > 0 && fits(now)) {
      best = fit_of(shares, asked);
      return true;
    }
    shares = changed(now, shares);
  }
  return false;
}

/// What the tightest device of a sharer has beyond what it needs, times their number.
double MemoryShares::room_of(std::span<const models::DeviceUse> uses, size_t sharer) const {
  constexpr double kEndless = std::numeric_limits<double>::infinity();
  const std::vector<Device*>& group = sharers_[sharer];
  double room = kEndless;
  for (const models::DeviceUse& use : uses) {
    if (has(group, use)) room = std::min(room, static_cast<double>(margin_bytes(use)));
  }
  // It has nothing yet.
  for (size_t i = 0; room == kEndless && i < group.size(); ++i) {
    room = std::min(room, static_cast<double>(group[i]->memory().free));
  }
  return room * static_cast<double>(group.size());
}

/// Where memory ends if devices could share in any parts: what they need grows evenly with the context.
double MemoryShares::possible_context(std::span<const models::DeviceUse> uses, int64_t context) const {
  double room = 0, cache = 0;
  for (size_t s = 0; s < sharers_.size(); ++s) room += room_of(uses, s);
  for (const models::DeviceUse& use : uses) cache += static_cast<double>(use.use.cache);
  const auto asked = static_cast<double>(context);
  return cache > 0 ? std::min(asked, asked + room * asked / cache) : asked;
}

// What a sharer has is something of its own, and its part of all that is divided.
Shares MemoryShares::balanced(std::span<const models::DeviceUse> uses, const Shares& shares) const {
  double all = 0, sum = 0;
  for (const models::DeviceUse& use : uses) all += static_cast<double>(use.use.weights + use.use.cache);
  Shares out(sharers_.size());
  for (size_t s = 0; s < out.size(); ++s) sum += out[s] = std::max(0.0, room_of(uses, s) + shares[s] * all);
  if (sum <= 0) return shares;
  for (double& share : out) share /= sum;
  return candidate_.mode == models::SplitMode::kLayer ? in_layers(out) : out;
}

/// Rounded to whole layers.
Shares MemoryShares::in_layers(const Shares& shares) const {
  const auto count = static_cast<double>(layers_);
  Shares out(shares.size());
  double end = 0, done = 0;
  for (size_t s = 0; s < shares.size(); ++s) {
    end += shares[s] * count;
    const double layers = std::max(0.0, std::round(end) - done);
    done += layers;
    out[s] = layers / count;
  }
  return out;
}

/// To three decimals; layers are whole already.
Shares MemoryShares::rounded(Shares shares) const {
  if (candidate_.mode == models::SplitMode::kLayer) return shares;
  double sum = 0;
  for (double& share : shares) sum += share = std::round(share * 1000) / 1000;
  if (!shares.empty()) *std::max_element(shares.begin(), shares.end()) += 1 - sum;
  return shares;
}

/// What is too much for some goes to others: bytes, or a layer from the tightest to the roomiest.
Shares MemoryShares::changed(const std::vector<models::DeviceUse>& uses, const Shares& shares) const {
  if (candidate_.mode == models::SplitMode::kTensor) {
    Prediction now;
    now.candidate = candidate_;
    now.candidate.shares = shares;
    now.memory = uses;
    return clipped_by_memory(now);
  }
  Shares out = in_layers(shares);
  std::vector<double> room;
  for (size_t s = 0; s < out.size(); ++s) room.push_back(room_of(uses, s));
  const auto tight = static_cast<size_t>(std::min_element(room.begin(), room.end()) - room.begin());
  const auto roomy = static_cast<size_t>(std::max_element(room.begin(), room.end()) - room.begin());
  const double one = std::min(out[tight], 1 / static_cast<double>(layers_));
  out[tight] -= one;
  out[roomy] += one;
  return in_layers(out);
}

Shares MemoryShares::even() const {
  return Shares(sharers_.size(), 1.0 / static_cast<double>(sharers_.size()));
}

}  // namespace shoal::tuning
