// Sets of devices that were measured together, and estimates for other sets. MachineModel uses these classes to
// estimate the times of collectives. The probe uses these classes to choose the sets that it measures.
#pragma once

#include <array>
#include <map>
#include <optional>
#include <span>
#include <string>
#include <vector>

#include "machine/machine.h"

namespace shoal::machine {

/// The kind of a device: its identity without the NUMA node, because equal devices on different nodes are alike.
/// Devices with the kind "" are not alike.
std::string kind_of(const DeviceModel& device);

/// An unordered set of devices of a machine.
class DeviceSet {
 public:
  /// `members` are indices of devices, each once.
  DeviceSet(const MachineModel& machine, std::span<const int> members);
  /// Finds devices by name. Returns nullopt if one of the devices is not in the machine.
  static std::optional<DeviceSet> of(const MachineModel& machine, std::span<const std::string> names);

  size_t size() const { return members_.size(); }
  /// Indices of the devices, ascending.
  const std::vector<int>& members() const { return members_; }
  /// Whether the kinds of all devices are known.
  bool is_measured() const { return is_measured_; }
  bool is_same(const DeviceSet& other) const { return members_ == other.members_; }
  /// Whether the other set has the same number of devices of each kind, distributed over domains in the same way.
  bool is_alike(const DeviceSet& other) const { return by_domain_ == other.by_domain_; }
  bool has_same_kinds(const DeviceSet& other) const { return kinds_ == other.kinds_; }
  /// Whether this set has all kinds of the other set. This set may have additional kinds.
  bool has_kinds_of(const DeviceSet& other) const;

 private:
  std::vector<int> members_;                 ///< ascending
  std::vector<int> kinds_;                   ///< ascending, each once
  std::vector<std::vector<int>> by_domain_;  ///< kinds of the devices, by domain
  bool is_measured_ = true;
};

/// Collects the times of measured sets and estimates the time of the wanted set. The estimate comes from the first of
/// these sources that exists:
/// - The measurement of the wanted set.
/// - The mean of the sets for which is_alike() is true.
/// - An interpolation by number of devices between sets of the same kinds.
/// - An interpolation by number of devices between sets that have all wanted kinds and also other kinds.
///
/// If the wanted set is larger than all measured sets, the estimate is extrapolated linearly from the two largest
/// measured sizes, but it is at least the time of the largest size.
class MeasuredSets {
 public:
  explicit MeasuredSets(DeviceSet wanted) : wanted_(std::move(wanted)) {}
  void add(const DeviceSet& set, double seconds);
  std::optional<double> seconds() const;
  /// Interpolates by the number of devices, between sets of any kinds.
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
  std::array<Sizes, 3> by_kinds_;  ///< [0]: sets with exactly the wanted kinds; [1]: with all wanted kinds; [2]: all
                                   ///< sets
};

/// Whether the machine has suitable measurements for the devices of each kind among these devices (indices). Suitable
/// measurements are a set of exactly the devices of the kind, a set of as many devices of the kind, or both a smaller
/// and a larger set of the kind. A single device of a kind needs no measurement. The result is true for a machine
/// without measured sets.
bool has_measured(const MachineModel& machine, std::span<const int> members);

}  // namespace shoal::machine
