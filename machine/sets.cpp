#include "machine/sets.h"

#include <algorithm>
#include <iterator>

namespace shoal::machine {
namespace {

const DeviceModel& device_at(const MachineModel& machine, int index) {
  return machine.devices[static_cast<size_t>(index)];
}

/// Index of the first device that has the same kind as device `index`. If this kind is unknown, returns `index`.
int first_of_kind(const MachineModel& machine, int index) {
  const std::string kind = kind_of(device_at(machine, index));
  for (int i = 0; i < index && !kind.empty(); ++i) {
    if (device_at(machine, i).type == device_at(machine, index).type && kind_of(device_at(machine, i)) == kind) {
      return i;
    }
  }
  return index;
}

}  // namespace

std::string kind_of(const DeviceModel& device) {
  constexpr std::string_view kNode = ", node ";
  std::string kind = device.identity;
  const size_t node = kind.find(kNode);
  if (device.type != DeviceType::kCpu || node == std::string::npos) return kind;
  return kind.erase(node, kind.find_first_not_of("0123456789", node + kNode.size()) - node);
}

DeviceSet::DeviceSet(const MachineModel& machine, std::span<const int> members)
    : members_(members.begin(), members.end()) {
  std::sort(members_.begin(), members_.end());
  std::map<int, std::vector<int>> domains;
  for (const int member : members_) {
    const int kind = first_of_kind(machine, member);
    kinds_.push_back(kind);
    domains[device_at(machine, member).domain].push_back(kind);
    is_measured_ = is_measured_ && !device_at(machine, member).identity.empty();
  }
  std::sort(kinds_.begin(), kinds_.end());
  kinds_.erase(std::unique(kinds_.begin(), kinds_.end()), kinds_.end());
  for (auto& [domain, kinds] : domains) {
    std::sort(kinds.begin(), kinds.end());
    by_domain_.push_back(std::move(kinds));
  }
  std::sort(by_domain_.begin(), by_domain_.end());
}

std::optional<DeviceSet> DeviceSet::of(const MachineModel& machine, std::span<const std::string> names) {
  std::vector<int> members;
  for (const std::string& name : names) {
    const auto found = std::find_if(machine.devices.begin(), machine.devices.end(),
                                    [&](const DeviceModel& device) { return device.name == name; });
    if (found == machine.devices.end()) return std::nullopt;
    members.push_back(static_cast<int>(found - machine.devices.begin()));
  }
  return DeviceSet(machine, members);
}

bool DeviceSet::has_kinds_of(const DeviceSet& other) const {
  return std::includes(kinds_.begin(), kinds_.end(), other.kinds_.begin(), other.kinds_.end());
}

void MeasuredSets::add(const DeviceSet& set, double seconds) {
  if (set.is_same(wanted_) && !same_) same_ = seconds;
  // Devices without an identity (DeviceModel::identity) may differ in unknown properties, so only measurements of the
  // wanted set itself count.
  if (!set.is_measured() || !wanted_.is_measured()) return;
  if (set.is_alike(wanted_)) alike_.add(seconds);
  if (set.has_same_kinds(wanted_)) by_kinds_[0][set.size()].add(seconds);
  if (set.has_kinds_of(wanted_)) by_kinds_[1][set.size()].add(seconds);
  by_kinds_[2][set.size()].add(seconds);
}

std::optional<double> MeasuredSets::seconds() const {
  if (same_) return same_;
  if (alike_.count > 0) return alike_.value();
  return by_size(by_kinds_[0].empty() ? by_kinds_[1] : by_kinds_[0]);
}

std::optional<double> MeasuredSets::by_size(const Sizes& sizes) const {
  if (sizes.empty()) return std::nullopt;
  const auto above = sizes.lower_bound(wanted_.size());
  if (above == sizes.begin() || sizes.size() == 1) return sizes.begin()->second.value();
  const bool beyond = above == sizes.end();
  const auto right = beyond ? std::prev(above) : above;
  const auto left = std::prev(right);
  const double from = left->second.value(), to = right->second.value();
  const double part = (static_cast<double>(wanted_.size()) - static_cast<double>(left->first)) /
                      static_cast<double>(right->first - left->first);
  // A set larger than all measured sets is never predicted to be faster than the largest measured set.
  return beyond ? to + std::max(0.0, to - from) * (part - 1) : from + part * (to - from);
}

bool has_measured(const MachineModel& machine, std::span<const int> members) {
  if (machine.collectives.empty()) return true;
  std::map<int, std::vector<int>> kinds;
  for (const int member : members) kinds[first_of_kind(machine, member)].push_back(member);
  return std::all_of(kinds.begin(), kinds.end(), [&](const auto& kind) {
    const DeviceSet wanted(machine, kind.second);
    bool smaller = false, larger = false;
    for (const CollectiveTable& table : machine.collectives) {
      const auto set = DeviceSet::of(machine, table.members);
      if (!set || !(set->is_same(wanted) || set->has_same_kinds(wanted))) continue;
      smaller = smaller || set->size() <= wanted.size();
      larger = larger || set->size() >= wanted.size();
    }
    return wanted.size() < 2 || (smaller && larger);
  });
}

}  // namespace shoal::machine
