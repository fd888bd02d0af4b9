// Finds the smallest host part with which a model fits.
#include <algorithm>

#include "base/error.h"
#include "devices/device.h"
#include "tuning/choose/dimensions.h"

namespace shoal::tuning {
namespace {

using Uses = std::vector<models::DeviceUse>;

/// Maximum number of corrections of the estimated compute memory. Each correction replaces the estimate by the
/// compute memory of a plan that does not fit.
constexpr int kCorrections = 4;
/// With this number of host layers, the host stores only the embedding. With 0 host layers, the host stores the
/// embedding and the output head.
constexpr int64_t kEmbedding = -1;

bool leaves(const Uses& uses, const Margin& margin) {
  return tightest(uses, margin) >= 0;
}

/// Searches the smallest host part for one choice of devices and mode. The sum of weights and caches is exact
/// (models::persistent_use). The compute memory comes from one plan and is assumed equal for all host parts.
class HostSearch {
 public:
  HostSearch(Chooser& chooser, const Choice& way, const Margin& margin)
      : chooser_(chooser), way_(way), margin_(margin), layers_(chooser.model().hparams.layers) {}

  /// Whether one of the tried plans maps weights.
  bool maps() const { return maps_; }

  /// Leaves only experts on the host. If this is not enough, leaves all experts and some whole layers on the host.
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
  /// Returns the choice with the host part part_of(n). n is the smallest number in [first, last] with which the choice
  /// fits.
  template <class PartOf>
  std::optional<Choice> least(int64_t first, int64_t last, const PartOf& part_of) {
    // Takes the compute memory from a plan that still leaves work for the devices.
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
        // The estimate may exceed the needed memory, so the next smaller host part may also fit.
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

  /// The choice with this host part. In layer mode, the groups divide the layers that are not on the host in proportion
  /// to the free memory of each group.
  Choice with(const HostPart& part) {
    Choice choice = way_;
    choice.host = part;
    const bool divides =
        choice.mode == models::SplitMode::kLayer && choice.groups.size() > 1 && part.device_layers != 0;
    if (!divides || !choice.shares.empty()) return choice;
    std::vector<models::DeviceUse> computing;
    for (const auto& [device, bytes] : compute_) computing.push_back({device, {.compute = bytes}, {}});
    choice.shares = layers_by_free_memory(chooser_, choice, computing, margin_.bytes);
    return choice;
  }

  Uses plan(const Choice& choice) {
    Uses uses = chooser_.plan(choice, margin_, 1).memory;
    maps_ |= std::any_of(uses.begin(), uses.end(), [](const models::DeviceUse& use) { return use.mapped > 0; });
    return uses;
  }

  /// Bytes of weights and caches, plus the compute memory of the latest plan.
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

  /// Compute memory of a device. If the plan does not contain the device, returns the largest compute memory of all
  /// devices.
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
  std::vector<std::pair<std::string, size_t>> compute_;  ///< compute memory by device, from the latest plan
};

/// The choice with experts on the host, followed by the choice with only layers on the host. Omits choices that
/// contradict the placement options.
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

Device* find_host(std::span<Device* const> devices, const models::PlacementOptions& options) {
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
  if (find_host(choice.devices(), asked.placement) == nullptr) return {};
  if (leaves(chooser.persistent(choice), margin) && leaves(chooser.plan(choice, margin, 1).memory, margin)) return {};
  chooser.find_figures();
  std::vector<Verdict> out;
  for (const Choice& part : parts_of(chooser, choice, margin)) {
    try {
      out.push_back(chooser.judge(part));
    } catch (const InvalidArgument&) {
      out.push_back(chooser.weigh(part));  // the machine model does not contain the host or a dtype
    }
  }
  std::stable_sort(out.begin(), out.end(), [&](const Verdict& a, const Verdict& b) {
    return seconds_of(a, asked.objective) < seconds_of(b, asked.objective);
  });
  return out;
}

}  // namespace shoal::tuning
