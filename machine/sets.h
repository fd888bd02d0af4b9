// Sets of devices that were measured together, and estimates for other sets. Used by machine/machine.cpp, and by the
// probe to decide which sets to measure.
#pragma once

#include <array>
#include <map>
#include <optional>
#include <span>
#include <string>
#include <vector>

#include "machine/machine.h"

namespace shoal::machine {

/// The kind of a device: its identity without the NUMA node, because equal devices on different nodes are alike. A
/// device of kind "" is unlike any other device.
std::string kind_of(const DeviceModel& device);

/// An unordered set of devices of a machine.
class DeviceSet {
 public:
  /// Devices by index, each once.
  DeviceSet(const MachineModel& machine, std::span<const int> members);
  /// Devices by name. nullopt if the machine lacks one of them.
  static std::optional<DeviceSet> of(const MachineModel& machine, std::span<const std::string> names);

  size_t size() const { return members_.size(); }
  /// Indices of the devices, ascending.
  const std::vector<int>& members() const { return members_; }
  /// Whether the kinds of all devices are known.
  bool is_measured() const { return is_measured_; }
  bool is_same(const DeviceSet& other) const { return members_ == other.members_; }
  /// Whether the other set has as many devices of each kind, with the same distribution over domains.
  bool is_alike(const DeviceSet& other) const { return by_domain_ == other.by_domain_; }
  bool has_same_kinds(const DeviceSet& other) const { return kinds_ == other.kinds_; }
  /// Whether this set has all kinds of the other set. It may have more kinds.
  bool has_kinds_of(const DeviceSet& other) const;

 private:
  std::vector<int> members_;                 ///< ascending
  std::vector<int> kinds_;                   ///< ascending, each once
  std::vector<std::vector<int>> by_domain_;  ///< kinds of the devices, by domain
  bool is_measured_ = true;
};

/// Collects the times of measured sets and estimates the time of the wanted set. The sources are, in this order: the
/// measurement of the wanted set; the mean of equal sets (is_alike()); an interpolation by size between sets of the
/// same kinds, or else between sets with more kinds. Beyond the largest measured set, the line through the last two
/// sizes continues.
class MeasuredSets {
 public:
  explicit MeasuredSets(DeviceSet wanted) : wanted_(std::move(wanted)) {}
  void add(const DeviceSet& set, double seconds);
  std::optional<double> seconds() const;
  /// Interpolation by size between sets of any kinds.
  std::optional<double> seconds_of_any() const { return by_size(by_kinds_[2]); }

 private:
  struct Mean {
    double sum = 0;
    int count = 0;
    void add(double seconds) { sum += seconds, ++count; }
    double value() const { return sum / count; }
  };
  using Sizes = std::map<size_t, Mean>;

  std::optional<double> by_size(const Sizes& sizes) const;

  DeviceSet wanted_;
  std::optional<double> same_;
  Mean alike_;
  std::array<Sizes, 3> by_kinds_;  ///< sets with the same kinds, with more kinds, with any kinds
};

/// Whether the machine has suitable measurements for each kind among these devices (indices). Suitable are: a set of
/// these devices, a set of equal size of the same kind, or both a smaller and a larger set of that kind. True for a
/// machine without measured sets.
bool has_measured(const MachineModel& machine, std::span<const int> members);

}  // namespace shoal::machine
