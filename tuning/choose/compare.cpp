#include "tuning/choose/compare.h"

#include <algorithm>
#include <exception>
#include <set>

#include "base/error.h"
#include "tuning/choose/dimensions.h"

namespace shoal::tuning {
namespace {

/// Number of the fastest device sets for which the best shares are searched.
constexpr size_t kClosely = 2;
/// Maximum effort of one search. The effort is the number of predictions, times layers, times devices. A search for a
/// large model uses fewer predictions, so it takes only a few seconds.
constexpr double kMostEffort = 5000;
constexpr int kLeastPredictions = 8, kMostPredictions = 48;
/// Maximum number of smaller device sets for which remedies are searched if nothing fits. These are the sets with the
/// most free memory.
constexpr size_t kMostNarrowWays = 4;

bool are_grouped(const models::DeviceGroups& groups) {
  return groups.size() > 1 && groups.size() < models::joined(groups).front().size();
}

/// Whether every device has a share above 0. The table omits a split in which a device has a share of 0, because the
/// set without this device has its own row.
bool has_all(const std::vector<double>& shares) {
  return std::find(shares.begin(), shares.end(), 0.0) == shares.end();
}

/// Choices for which remedies are searched if nothing fits. Choices with all devices come first, and the first choice
/// has the asked mode. Choices with fewer devices come last.
std::vector<Choice> ways_of(const Choice& asked, const machine::MachineModel& machine) {
  const std::vector<Device*> devices = asked.devices();
  std::vector<Choice> ways{acting_as_one(devices)};
  if (devices.size() == 1) return ways;
  if (are_grouped(asked.groups)) ways.push_back({asked.groups, models::SplitMode::kLayer});
  ways.push_back(layers_of(devices));
  if (asked.mode == models::SplitMode::kLayer) std::rotate(ways.begin(), ways.begin() + 1, ways.end());
  auto sets = useful_sets(devices, machine);
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

/// Builds the table of a Comparison.
class Table {
 public:
  Table(Chooser& chooser, const std::function<void(int, int)>& progress)
      : chooser_(chooser), progress_(progress), asked_(chooser.asked().fixed), devices_(asked_.devices()) {}

  void fill() {
    const auto sets = useful_sets(devices_, chooser_.machine());
    for (size_t i = 0; i < sets.size(); ++i) {
      if (progress_) progress_(static_cast<int>(i), static_cast<int>(sets.size()));
      consider_set(sets[i]);
    }
    if (are_grouped(asked_.groups)) consider({asked_.groups, models::SplitMode::kLayer});
    look_closely();
    if (verdicts_.empty() && refusal_) std::rethrow_exception(refusal_);
    sort();
  }

  /// For each mode, adds the best split in which every device has work. These rows show the cost of using all devices.
  void add_all_taking_part() {
    for (const Choice& choice : {acting_as_one(devices_), layers_of(devices_)}) {
      if (choice.mode == models::SplitMode::kTensor || has_layers_for(devices_)) search(choice, true);
    }
    sort();
  }

  /// Adds choices with all devices and the smallest possible host part.
  void add_hosts() {
    std::vector<Choice> ways{acting_as_one(devices_)};
    if (devices_.size() > 1 && has_layers_for(devices_)) ways.push_back(layers_of(devices_));
    for (const Choice& way : ways) {
      try {
        for (Verdict& one : host_parts(chooser_, way, {})) {
          if (one.has_time()) add(std::move(one));
        }
      } catch (const InvalidArgument&) {
        refusal_ = std::current_exception();
      }
    }
    sort();
  }

  std::vector<Verdict>& verdicts() { return verdicts_; }

 private:
  void consider_set(const std::vector<Device*>& set) {
    const Choice as_one = acting_as_one(set);
    if (set.size() == 1) return void(consider(as_one));
    search(as_one, false, 1);
    if (!has_layers_for(set)) return;
    Choice layers = layers_of(set);
    const std::optional<Verdict> even = consider(layers);
    if (even && (!even->may_fit() || (even->fits && are_alike(set, chooser_.machine())))) return;
    try {
      layers.shares = shares_by_speed(chooser_, layers);
      const Verdict verdict = chooser_.judge(layers);
      if (!verdict.fits) layers.shares = clipped_by_memory(verdict);
      layers.shares = simplest_shares(chooser_, layers);
    } catch (const InvalidArgument&) {
      return void(refusal_ = std::current_exception());
    }
    if (has_all(layers.shares)) consider(layers);
  }

  /// Searches for the best shares of only the fastest sets. A slower set would not win even with better shares.
  void look_closely() {
    std::vector<Verdict> fastest;
    std::copy_if(verdicts_.begin(), verdicts_.end(), std::back_inserter(fastest), [](const Verdict& one) {
      return one.fits && one.choice.mode == models::SplitMode::kTensor && one.choice.device_count() > 1;
    });
    std::stable_sort(fastest.begin(), fastest.end(), [&](const Verdict& a, const Verdict& b) {
      return seconds_of(a, objective()) < seconds_of(b, objective());
    });
    std::set<std::string> seen;
    for (const Verdict& one : fastest) {
      if (seen.size() == kClosely) break;
      if (seen.insert(one.choice.devices_text()).second) search(acting_as_one(one.choice.devices()), false);
    }
  }

  void search(const Choice& choice, bool all_take_part, int predictions = 0) {
    const double effort =
        static_cast<double>(chooser_.model().hparams.layers) * static_cast<double>(choice.device_count());
    const int affordable = std::clamp(static_cast<int>(kMostEffort / effort), kLeastPredictions, kMostPredictions);
    try {
      FoundShares found = fastest_shares(chooser_, choice, {predictions > 0 ? predictions : affordable, all_take_part});
      if (!all_take_part) add(std::move(found.even));
      if (has_all(found.best.choice.shares)) add(std::move(found.best));
    } catch (const InvalidArgument&) {
      refusal_ = std::current_exception();
    }
  }

  bool has_layers_for(const std::vector<Device*>& set) const {
    return static_cast<int64_t>(set.size()) <= chooser_.model().hparams.layers;
  }

  /// Adds the verdict of a choice. Returns nullopt if the choice is impossible.
  std::optional<Verdict> consider(const Choice& choice) {
    try {
      const Verdict verdict = chooser_.judge(choice);
      add(verdict);
      return verdict;
    } catch (const InvalidArgument&) {
      refusal_ = std::current_exception();
      return std::nullopt;
    }
  }

  void add(Verdict verdict) {
    const std::string key = verdict.choice.devices_text() + " " + verdict.split_key;
    if (known_.insert(key).second) verdicts_.push_back(std::move(verdict));
  }

  /// Sorts the verdicts into this order: choices that fit, by speed; choices that read weights from the disk, by speed;
  /// other choices, by missing bytes.
  void sort() {
    std::stable_sort(verdicts_.begin(), verdicts_.end(), [&](const Verdict& a, const Verdict& b) {
      if (a.from_disk != b.from_disk && !(a.fits || b.fits)) return a.from_disk;
      if (a.from_disk && b.from_disk) return seconds_of(a, objective()) < seconds_of(b, objective());
      return is_better(a, b, objective());
    });
  }

  Objective objective() const { return chooser_.asked().objective; }

  Chooser& chooser_;
  const std::function<void(int, int)>& progress_;
  const Choice& asked_;
  const std::vector<Device*> devices_;
  std::vector<Verdict> verdicts_;
  std::set<std::string> known_;
  std::exception_ptr refusal_;
};

}  // namespace

Comparison compare(Chooser& chooser, const std::function<void(int, int)>& progress) {
  const Asked& asked = chooser.asked();
  require_work(asked.work, asked.objective);
  Table table(chooser, progress);
  table.fill();
  Comparison out;
  std::vector<Verdict>& verdicts = table.verdicts();
  if (verdicts.empty()) return out;
  const bool leaves_some_out = verdicts[0].choice.device_count() < asked.fixed.device_count();
  if (verdicts[0].fits && leaves_some_out) table.add_all_taking_part();
  const Device* host = find_host(asked.fixed.devices(), asked.placement);
  const auto& described = chooser.machine().devices;
  const bool knows_host = host != nullptr && std::any_of(described.begin(), described.end(), [&](const auto& device) {
                            return device.name == host->name();
                          });
  if (!verdicts[0].fits && knows_host) table.add_hosts();
  if (verdicts[0].fits || verdicts[0].from_disk) {
    out.best = 0;
    out.reason = reason_of(verdicts, asked.objective);
  }
  if (!verdicts[0].fits) out.remedies = remedies(chooser, verdicts[0], ways_of(asked.fixed, chooser.machine()));
  out.verdicts = std::move(verdicts);
  return out;
}

}  // namespace shoal::tuning
