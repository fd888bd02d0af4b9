// Sets of devices for comparisons. Predictions are the same for all devices of one kind, so only one of several
// equivalent sets remains.
#include <fmt/format.h>
#include <fmt/ranges.h>

#include <algorithm>
#include <cmath>
#include <map>
#include <set>

#include "tuning/choose/dimensions.h"

namespace shoal::tuning {
namespace {

constexpr size_t kMostSets = 64;
constexpr size_t kMostDevicesForSets = 12;
/// Values count as equal up to this relative difference, because repeated measurements differ that much.
constexpr double kAlike = 0.1;

bool alike(double a, double b) {
  return std::abs(a - b) <= kAlike * std::max(std::abs(a), std::abs(b));
}

bool alike(const std::vector<machine::ProductPoint>& a, const std::vector<machine::ProductPoint>& b) {
  return std::equal(a.begin(), a.end(), b.begin(), b.end(),
                    [](const auto& x, const auto& y) { return x.columns == y.columns && alike(x.seconds, y.seconds); });
}

bool alike(const machine::ProductModel& a, const machine::ProductModel& b) {
  return alike(a.streamed, b.streamed) && alike(a.cached, b.cached);
}

/// Whether two devices have equal measurements. The comparison ignores names and domains.
bool alike(const machine::DeviceModel& a, const machine::DeviceModel& b) {
  if (a.identity != b.identity || a.type != b.type) return false;
  for (const auto figure :
       {&machine::DeviceModel::cores, &machine::DeviceModel::bandwidth, &machine::DeviceModel::cache_bytes,
        &machine::DeviceModel::activation_bandwidth, &machine::DeviceModel::attention_rate,
        &machine::DeviceModel::attention_bandwidth, &machine::DeviceModel::op_seconds,
        &machine::DeviceModel::step_seconds, &machine::DeviceModel::run_seconds}) {
    if (!alike(a.*figure, b.*figure)) return false;
  }
  return std::equal(a.products.begin(), a.products.end(), b.products.begin(), b.products.end(),
                    [](const auto& x, const auto& y) { return x.first == y.first && alike(x.second, y.second); });
}

class Kinds {
 public:
  /// Queries the free memory of the devices. `machine` must outlive this object.
  Kinds(std::span<Device* const> devices, const machine::MachineModel& machine) : machine_(machine) {
    for (const machine::DeviceModel& device : machine.devices) memory_.push_back(static_cast<double>(device.memory));
    for (const Device* device : devices) memory_[index_of(*device)] = static_cast<double>(device->memory().free);
    kinds_ = numbered(machine.devices.size(), [&](size_t a, size_t b) {
      return alike(machine_.devices[a], machine_.devices[b]) && alike(memory_[a], memory_[b]);
    });
    domain_kinds_ = numbered(machine.domains.size(), [&](size_t a, size_t b) {
      const machine::Domain &x = machine_.domains[a], &y = machine_.domains[b];
      return alike(x.bandwidth, y.bandwidth) && alike(x.cores, y.cores) && kinds_in(a) == kinds_in(b);
    });
  }

  /// A key that is equal for equivalent sets. The key lists the kinds of the set's devices in each domain.
  std::string of(std::span<Device* const> set) const {
    std::map<size_t, std::vector<size_t>> used;
    for (const Device* device : set) used[domain_of(*device)].push_back(kinds_[index_of(*device)]);
    std::vector<std::string> domains;
    for (auto& [domain, kinds] : used) {
      std::sort(kinds.begin(), kinds.end());
      domains.push_back(fmt::format("{} of {}", fmt::join(kinds, "|"), domain_kinds_[domain]));
    }
    std::sort(domains.begin(), domains.end());
    return fmt::format("{}", fmt::join(domains, " and "));
  }

  std::vector<size_t> exchangeable(std::span<Device* const> set) const {
    std::map<size_t, int> used;
    for (const Device* device : set) ++used[domain_of(*device)];
    std::map<std::string, size_t> numbers;
    std::vector<size_t> out;
    for (const Device* device : set) {
      const size_t domain = domain_of(*device);
      const std::string place =
          used[domain] == 1 ? fmt::format("domain kind {} alone", domain_kinds_[domain]) : fmt::format("in {}", domain);
      const std::string text = fmt::format("{} {}", kinds_[index_of(*device)], place);
      out.push_back(numbers.emplace(text, numbers.size()).first->second);
    }
    return out;
  }

 private:
  /// For each index i, returns the smallest index n for which `alike(n, i)` is true, or i if there is no such index
  /// below i.
  template <class Alike>
  static std::vector<size_t> numbered(size_t count, const Alike& alike) {
    std::vector<size_t> numbers;
    for (size_t i = 0; i < count; ++i) {
      size_t first = 0;
      while (first < i && !alike(first, i)) ++first;
      numbers.push_back(first);
    }
    return numbers;
  }
  /// The kinds of all devices in a domain, sorted.
  std::vector<size_t> kinds_in(size_t domain) const {
    std::vector<size_t> kinds;
    for (size_t i = 0; i < kinds_.size(); ++i) {
      if (static_cast<size_t>(machine_.devices[i].domain) == domain) kinds.push_back(kinds_[i]);
    }
    std::sort(kinds.begin(), kinds.end());
    return kinds;
  }
  size_t index_of(const Device& device) const { return static_cast<size_t>(machine_.index(device.name())); }
  size_t domain_of(const Device& device) const {
    return static_cast<size_t>(machine_.devices[index_of(device)].domain);
  }

  const machine::MachineModel& machine_;
  std::vector<double> memory_;        ///< free bytes by device
  std::vector<size_t> kinds_;         ///< for each device: the index of the first equal device
  std::vector<size_t> domain_kinds_;  ///< for each domain: the index of the first equal domain
};

/// Returns one set for each size n: the n devices with the highest bandwidth.
std::vector<std::vector<Device*>> first_sets(std::span<Device* const> devices, const machine::MachineModel& machine) {
  const auto bandwidth = [&](const Device* device) {
    return machine.devices[static_cast<size_t>(machine.index(device->name()))].bandwidth;
  };
  std::vector<Device*> sorted(devices.begin(), devices.end());
  std::stable_sort(sorted.begin(), sorted.end(),
                   [&](const Device* a, const Device* b) { return bandwidth(a) > bandwidth(b); });
  std::vector<std::vector<Device*>> sets;
  for (auto end = sorted.begin() + 1; sets.size() < sorted.size(); ++end) sets.emplace_back(sorted.begin(), end);
  return sets;
}

}  // namespace

std::vector<std::vector<Device*>> useful_sets(std::span<Device* const> devices, const machine::MachineModel& machine) {
  if (devices.size() > kMostDevicesForSets) return first_sets(devices, machine);
  const Kinds kinds(devices, machine);
  std::vector<std::vector<Device*>> sets;
  std::set<std::string> known;
  for (size_t mask = 1; mask < size_t{1} << devices.size(); ++mask) {
    std::vector<Device*> set;
    for (size_t i = 0; i < devices.size(); ++i) {
      if ((mask >> i & 1) != 0) set.push_back(devices[i]);
    }
    if (known.insert(kinds.of(set)).second) sets.push_back(std::move(set));
  }
  if (sets.size() > kMostSets) return first_sets(devices, machine);
  std::stable_sort(sets.begin(), sets.end(), [](const auto& a, const auto& b) { return a.size() < b.size(); });
  return sets;
}

std::vector<size_t> alike_sets(std::span<const std::vector<Device*>> sets, const machine::MachineModel& machine) {
  std::vector<Device*> devices;
  for (const auto& set : sets) devices.insert(devices.end(), set.begin(), set.end());
  const Kinds kinds(devices, machine);
  std::map<std::string, size_t> first;
  std::vector<size_t> out;
  for (const auto& set : sets) out.push_back(first.emplace(kinds.of(set), out.size()).first->second);
  return out;
}

std::vector<size_t> exchangeable(std::span<Device* const> set, const machine::MachineModel& machine) {
  return Kinds(set, machine).exchangeable(set);
}

bool are_alike(std::span<Device* const> set, const machine::MachineModel& machine) {
  const std::vector<size_t> kinds = exchangeable(set, machine);
  return std::all_of(kinds.begin(), kinds.end(), [&](size_t kind) { return kind == kinds.front(); });
}

}  // namespace shoal::tuning
