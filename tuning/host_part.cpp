#include "tuning/host_part.h"

#include <algorithm>
#include <cmath>
#include <numeric>

#include "base/error.h"

namespace shoal::tuning {
namespace {

using Uses = std::vector<models::DeviceUse>;

/// How often what was found by adding up is changed when a plan says that it does not fit.
constexpr int kCorrections = 4;
/// Layers on the host, where there are none, but the embedding: as if the head were one more layer. 0: the head too.
constexpr int64_t kEmbedding = -1;

/// Looks for the least that has to stay on the host, for devices in one mode. What weights and caches take is added up
/// (models::persistent_use); what it takes to compute with them is the same for all parts, and comes from a plan.
class HostSearch {
 public:
  HostSearch(const Scenario& scenario, const Candidate& way, const FitOptions& fit)
      : scenario_(scenario), way_(way), fit_(fit), layers_(scenario.model.hparams.layers) {}

  /// Are weights mapped in one of the plans?
  bool maps() const { return maps_; }

  /// Experts alone, or where that is not enough all of them and whole layers besides.
  std::optional<Candidate> with_experts() {
    const int64_t all = models::layers_with_experts(scenario_.model);
    if (all == 0) return std::nullopt;
    if (auto found = least(1, all, [](int64_t n) { return HostPart{.expert_layers = n}; })) return found;
    return least(kEmbedding, layers_, [&](int64_t n) { return HostPart{layers_ - n, all}; });
  }

  std::optional<Candidate> with_layers() {
    return least(kEmbedding, layers_, [&](int64_t n) { return HostPart{layers_ - n, 0}; });
  }

 private:
  /// The smallest number from `first` to `last` whose part fits.
  template <class PartOf>
  std::optional<Candidate> least(int64_t first, int64_t last, const PartOf& part_of) {
    // What it takes to compute where the devices have something to do.
    const Candidate usual = with(part_of(std::max(first, last - 1)));
    compute_ = needed_to_compute(plan(usual), persistent(usual));
    const auto fits_with = [&](int64_t n) { return is_enough(with(part_of(n))); };
    if (!fits_with(last)) return std::nullopt;
    int64_t too_few = first - 1, enough = last;
    while (enough - too_few > 1) {
      const int64_t middle = too_few + (enough - too_few) / 2;
      (fits_with(middle) ? enough : too_few) = middle;
    }
    for (int i = 0; i < kCorrections && enough <= last; ++i) {
      const Candidate found = with(part_of(enough));
      const Uses planned = plan(found);
      if (has_room(planned)) return i == 0 && enough > first ? with_one_less(found, part_of(enough - 1)) : found;
      compute_ = needed_to_compute(planned, persistent(found));
      do {
        ++enough;
      } while (enough < last && !fits_with(enough));
    }
    return std::nullopt;
  }

  /// The least that was found by adding up may be too much by one.
  Candidate with_one_less(const Candidate& found, const HostPart& part) {
    Candidate less = with(part);
    const Uses planned = plan(less);
    if (has_room(planned)) return less;
    return found;
  }

  Candidate with(const HostPart& part) const {
    Candidate candidate = way_;
    candidate.host = part;
    const bool divides = candidate.mode == models::SplitMode::kLayer && candidate.groups.size() > 1;
    if (divides && candidate.shares.empty()) candidate.shares = layer_shares(part);
    return candidate;
  }

  models::Placement placement(const Candidate& candidate) const {
    return {scenario_.model, candidate.groups, placement_of(candidate, scenario_)};
  }

  Uses persistent(const Candidate& candidate) const {
    if (scenario_.poll) scenario_.poll();
    return models::persistent_use(scenario_.model, placement(candidate), scenario_.session, scenario_.load);
  }

  Uses plan(const Candidate& candidate) {
    if (scenario_.poll) scenario_.poll();
    Uses uses =
        models::plan_to_load(scenario_.model, placement(candidate), scenario_.session, scenario_.load, 1).memory;
    maps_ |= std::any_of(uses.begin(), uses.end(), [](const models::DeviceUse& use) { return use.mapped > 0; });
    return uses;
  }

  /// As far as is known what it takes to compute.
  bool is_enough(const Candidate& candidate) {
    Uses uses = persistent(candidate);
    for (models::DeviceUse& use : uses) use.use.compute += compute_of(use.device);
    return has_room(uses);
  }

  bool has_room(const Uses& uses) const {
    return std::all_of(uses.begin(), uses.end(),
                       [&](const models::DeviceUse& use) { return spare_bytes(use, fit_) >= 0; });
  }

  struct Compute {
    std::string device;
    size_t bytes;
  };
  static std::vector<Compute> needed_to_compute(const Uses& planned, const Uses& persistent) {
    std::vector<Compute> out;
    for (size_t i = 0; i < planned.size(); ++i) {
      out.push_back(
          {planned[i].device, planned[i].use.total() - std::min(planned[i].use.total(), persistent[i].use.total())});
    }
    return out;
  }
  /// Of a device that the plan did not have as much as the one that needs most.
  size_t compute_of(const std::string& device) const {
    size_t most = 0;
    for (const Compute& one : *compute_) {
      if (one.device == device) return one.bytes;
      most = std::max(most, one.bytes);
    }
    return most;
  }

  /// As many layers for each group as it has room for, so that the fullest one is as empty as possible.
  std::vector<double> layer_shares(const HostPart& part) const {
    const int64_t here = part.device_layers < 0 ? layers_ : std::min(part.device_layers, layers_);
    Bytes bytes = bytes_of_layers(part);
    const std::span<const double> divided(bytes.layers.data() + (layers_ - here), static_cast<size_t>(here));
    std::vector<double> room;
    for (const auto& group : way_.groups) {
      double one = 0;
      for (const Device* device : group) {
        const double own = compute_ ? static_cast<double>(compute_of(device->name())) : 0;
        one += std::max(0.0, static_cast<double>(device->memory().free) - static_cast<double>(fit_.margin) - own);
      }
      room.push_back(one);
    }
    room.front() = std::max(0.0, room.front() - bytes.first);
    room.back() = std::max(0.0, room.back() - bytes.last);
    const double all = std::accumulate(divided.begin(), divided.end(), 0.0);
    const double space = std::accumulate(room.begin(), room.end(), 0.0);
    if (here == 0 || all <= 0 || space <= 0) return {};
    double low = 0, high = 2 * all / space + 1;
    std::vector<double> counts = filled(divided, room, high);
    for (int i = 0; i < 40; ++i) {
      const double level = (low + high) / 2;
      std::vector<double> tried = filled(divided, room, level);
      const double done = std::accumulate(tried.begin(), tried.end(), 0.0);
      if (done < static_cast<double>(here)) {
        low = level;
      } else {
        high = level;
        counts = std::move(tried);
      }
    }
    const double done = std::accumulate(counts.begin(), counts.end(), 0.0);
    counts.back() += static_cast<double>(here) - done;
    return counts;
  }

  /// Layers, one after the other, for groups that are filled up to a part of their room.
  static std::vector<double> filled(std::span<const double> layers, std::span<const double> room, double level) {
    std::vector<double> counts(room.size(), 0.0);
    size_t next = 0;
    for (size_t g = 0; g < room.size(); ++g) {
      double left = level * room[g];
      while (next < layers.size() && layers[next] <= left) {
        left -= layers[next++];
        ++counts[g];
      }
    }
    return counts;
  }

  /// What each layer has that is not on the host, weights and cache, and what goes with the first or the last one.
  struct Bytes {
    std::vector<double> layers;
    double first = 0, last = 0, host = 0;
  };
  Bytes bytes_of_layers(const HostPart& part) const {
    Bytes bytes{std::vector<double>(static_cast<size_t>(layers_), 0.0)};
    const bool all = part.device_layers < 0;
    const auto place_of = [&](const models::TensorSpec& spec) -> double& {
      if (spec.layer >= 0) return bytes.layers[static_cast<size_t>(spec.layer)];
      const bool is_looked_up = spec.role == models::TensorRole::kEmbedding || spec.role == models::TensorRole::kLookup;
      if (!all && (is_looked_up || part.device_layers <= layers_)) return bytes.host;
      return is_looked_up && !scenario_.model.is_tied() ? bytes.first : bytes.last;
    };
    std::vector<bool> are_left(static_cast<size_t>(layers_), false);
    int64_t left = part.expert_layers;
    int last = -1;
    for (const models::TensorSpec& spec : scenario_.model.specs) {
      if (spec.role != models::TensorRole::kExperts || spec.layer == last || left == 0) continue;
      last = spec.layer;
      are_left[static_cast<size_t>(last)] = true;
      --left;
    }
    for (const models::TensorSpec& spec : scenario_.model.specs) {
      const bool is_left = spec.role == models::TensorRole::kExperts && are_left[static_cast<size_t>(spec.layer)];
      if (!is_left) place_of(spec) += static_cast<double>(scenario_.model.weights.find(spec.name)->bytes());
    }
    models::KvCache cache;
    const models::SessionSize size = session_size(scenario_.model.hparams, scenario_.session);
    declare_cache(cache, scenario_.model.hparams, cache_options(size, scenario_.session, 1));
    for (const models::TensorSpec& spec : cache.specs) {
      const Tensor* tensor = cache.context.find(spec.name);
      if (tensor != nullptr) place_of(spec) += static_cast<double>(tensor->bytes());
    }
    return bytes;
  }

  const Scenario& scenario_;
  const Candidate& way_;
  const FitOptions& fit_;
  int64_t layers_;
  bool maps_ = false;
  std::optional<std::vector<Compute>> compute_;  ///< of the last plan
};

}  // namespace

Device* host_beside(std::span<Device* const> devices, const models::PlacementOptions& options) {
  if (options.uses_host() || options.processes != nullptr) return nullptr;
  const auto is_cpu = [](const Device* device) { return device->type() == DeviceType::kCpu; };
  if (std::any_of(devices.begin(), devices.end(), is_cpu)) return nullptr;
  if (options.host != nullptr) return options.host;
  const auto here = Registry::instance().devices();
  const auto found = std::find_if(here.begin(), here.end(), is_cpu);
  return found == here.end() ? nullptr : *found;
}

models::PlacementOptions with_all_on_host(models::PlacementOptions options) {
  options.ratio.clear();
  options.device_layers = 0;
  return options;
}

std::vector<Candidate> host_parts(const Scenario& scenario, std::span<const Candidate> ways, FitOptions fit) {
  std::vector<Candidate> out;
  bool maps = false;
  for (const Candidate& way : ways) {
    for (const bool experts : {true, false}) {
      HostSearch search(scenario, way, fit);
      try {
        if (auto found = experts ? search.with_experts() : search.with_layers()) out.push_back(*std::move(found));
      } catch (const InvalidArgument&) {
        continue;  // what the options of the placement rule out
      }
      maps |= search.maps();
    }
  }
  if (!out.empty() || fit.from_disk || !maps) return out;
  fit.from_disk = true;
  return host_parts(scenario, ways, fit);
}

}  // namespace shoal::tuning
