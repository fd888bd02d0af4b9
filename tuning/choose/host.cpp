// The least part of a model that has to stay on the host.
#include <algorithm>

#include "base/error.h"
#include "devices/device.h"
#include "tuning/choose/dimensions.h"

namespace shoal::tuning {
namespace {

using Uses = std::vector<models::DeviceUse>;

/// Most corrections of a sum by a plan that does not fit.
constexpr int kCorrections = 4;
/// Layers on the host if only the embedding stays there: as if the head were one more layer. 0: also the head.
constexpr int64_t kEmbedding = -1;

bool leaves(const Uses& uses, const Margin& margin) {
  return tightest(uses, margin) >= 0;
}

/// The search for one way. The sum of weights and caches is exact (models::persistent_use); the memory to compute is
/// the same for all parts, and comes from a plan.
class HostSearch {
 public:
  HostSearch(Chooser& chooser, const Choice& way, const Margin& margin)
      : chooser_(chooser), way_(way), margin_(margin), layers_(chooser.model().hparams.layers) {}

  /// Weights are mapped in one of the plans.
  bool maps() const { return maps_; }

  /// Experts alone, or, if that is not enough, all of them and whole layers besides.
  std::optional<Choice> with_experts() {
    const int64_t all = models::layers_with_experts(chooser_.model());
    if (all == 0) return std::nullopt;
    if (auto found = least(1, all, [](int64_t n) { return HostPart{.expert_layers = n}; })) return found;
    return least(kEmbedding, layers_, [&](int64_t n) { return HostPart{layers_ - n, all}; });
  }

  std::optional<Choice> with_layers() {
    return least(kEmbedding, layers_, [&](int64_t n) { return HostPart{layers_ - n, 0}; });
  }

 private:
  /// The smallest number from `first` to `last` whose part fits.
  template <class PartOf>
  std::optional<Choice> least(int64_t first, int64_t last, const PartOf& part_of) {
    // The memory to compute if the devices have something to do.
    const Choice usual = with(part_of(std::max(first, last - 1)));
    correct(usual, plan(usual));
    const auto fits_with = [&](int64_t n) { return leaves(uses_of(with(part_of(n))), margin_); };
    if (!fits_with(last)) return std::nullopt;
    int64_t too_few = first - 1, enough = last;
    while (enough - too_few > 1) {
      const int64_t middle = too_few + (enough - too_few) / 2;
      (fits_with(middle) ? enough : too_few) = middle;
    }
    for (int i = 0; i < kCorrections && enough <= last; ++i) {
      const Choice found = with(part_of(enough));
      const Uses planned = plan(found);
      if (leaves(planned, margin_)) {
        // The sum may be too much by one.
        const bool may_be_less = i == 0 && enough > first;
        const Choice less = may_be_less ? with(part_of(enough - 1)) : found;
        return may_be_less && leaves(plan(less), margin_) ? less : found;
      }
      correct(found, planned);
      do {
        ++enough;
      } while (enough < last && !fits_with(enough));
    }
    return std::nullopt;
  }

  /// Layers that are divided go to each group in proportion to its room.
  Choice with(const HostPart& part) {
    Choice choice = way_;
    choice.host = part;
    const bool divides =
        choice.mode == models::SplitMode::kLayer && choice.groups.size() > 1 && part.device_layers != 0;
    if (!divides || !choice.shares.empty()) return choice;
    std::vector<models::DeviceUse> computing;
    for (const auto& [device, bytes] : compute_) computing.push_back({device, {.compute = bytes}, {}});
    choice.shares = roomiest_layers(chooser_, choice, computing, margin_.bytes);
    return choice;
  }

  Uses plan(const Choice& choice) {
    Uses uses = chooser_.plan(choice, margin_, 1).memory;
    maps_ |= std::any_of(uses.begin(), uses.end(), [](const models::DeviceUse& use) { return use.mapped > 0; });
    return uses;
  }

  /// The sum, and the memory to compute as far as it is known.
  Uses uses_of(const Choice& choice) {
    Uses uses = chooser_.persistent(choice);
    for (models::DeviceUse& use : uses) use.use.compute += compute_of(use.device);
    return uses;
  }

  void correct(const Choice& choice, const Uses& planned) {
    const Uses persistent = chooser_.persistent(choice);
    compute_.clear();
    for (size_t i = 0; i < planned.size(); ++i) {
      const size_t total = planned[i].use.total();
      compute_.emplace_back(planned[i].device, total - std::min(total, persistent[i].use.total()));
    }
  }

  /// A device that the plan did not have needs as much as the one that needs most.
  size_t compute_of(const std::string& device) const {
    size_t most = 0;
    for (const auto& [name, bytes] : compute_) {
      if (name == device) return bytes;
      most = std::max(most, bytes);
    }
    return most;
  }

  Chooser& chooser_;
  const Choice& way_;
  const Margin margin_;
  int64_t layers_;
  bool maps_ = false;
  std::vector<std::pair<std::string, size_t>> compute_;  ///< bytes to compute, by device of the last plan
};

/// Experts, then layers; ways that the options of the placement rule out are left out.
std::vector<Choice> parts_of(Chooser& chooser, const Choice& way, Margin margin) {
  std::vector<Choice> out;
  bool maps = false;
  for (const bool experts : {true, false}) {
    HostSearch search(chooser, way, margin);
    try {
      if (auto found = experts ? search.with_experts() : search.with_layers()) out.push_back(*std::move(found));
    } catch (const InvalidArgument&) {
      continue;
    }
    maps |= search.maps();
  }
  if (!out.empty() || margin.from_disk || !maps) return out;
  margin.from_disk = true;
  return parts_of(chooser, way, margin);
}

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

std::vector<Verdict> host_parts(Chooser& chooser, const Choice& choice, const Margin& margin) {
  const Asked& asked = chooser.asked();
  if (host_beside(choice.devices(), asked.placement) == nullptr) return {};
  if (leaves(chooser.persistent(choice), margin) && leaves(chooser.plan(choice, margin, 1).memory, margin)) return {};
  chooser.find_figures();
  std::vector<Verdict> out;
  for (const Choice& part : parts_of(chooser, choice, margin)) {
    try {
      out.push_back(chooser.judge(part));
    } catch (const InvalidArgument&) {
      out.push_back(chooser.weigh(part));  // the machine's figures lack the host, or a type
    }
  }
  std::stable_sort(out.begin(), out.end(), [&](const Verdict& a, const Verdict& b) {
    return seconds_of(a, asked.objective) < seconds_of(b, asked.objective);
  });
  return out;
}

}  // namespace shoal::tuning
