// Sets of devices that were measured together, and what they say of other sets. Used by machine/machine.cpp and by what
// decides which sets are measured.
#pragma once

#include <array>
#include <map>
#include <optional>
#include <span>
#include <string>
#include <vector>

#include "machine/machine.h"

namespace shoal::machine {

/// What a device has in common with those like it: its identity, whatever node it is on. "" is like no other.
std::string kind_of(const DeviceModel& device);

/// Devices of a machine, in no order.
class DeviceSet {
 public:
  /// By index, each once.
  DeviceSet(const MachineModel& machine, std::span<const int> members);
  /// By name. nullopt where the machine lacks one.
  static std::optional<DeviceSet> of(const MachineModel& machine, std::span<const std::string> names);

  size_t size() const { return members_.size(); }
  /// Indices, ascending.
  const std::vector<int>& members() const { return members_; }
  /// Of each device it is known what it is like.
  bool is_measured() const { return is_measured_; }
  bool is_same(const DeviceSet& other) const { return members_ == other.members_; }
  /// As many of each kind, which share domains in the same way.
  bool is_alike(const DeviceSet& other) const { return by_domain_ == other.by_domain_; }
  bool has_same_kinds(const DeviceSet& other) const { return kinds_ == other.kinds_; }
  /// All kinds of the other one, and perhaps more.
  bool has_kinds_of(const DeviceSet& other) const;

 private:
  std::vector<int> members_;                 ///< ascending
  std::vector<int> kinds_;                   ///< ascending, each once
  std::vector<std::vector<int>> by_domain_;  ///< the kinds of its devices in each domain
  bool is_measured_ = true;
};

/// Collects the times of measured sets, and estimates the time of the wanted set: its own measurement, or the mean of
/// sets that are alike, or an interpolation by size between sets of the same kinds or else sets with more kinds. Beyond
/// the largest set the line between the last two goes on.
class MeasuredSets {
 public:
  explicit MeasuredSets(DeviceSet wanted) : wanted_(std::move(wanted)) {}
  void add(const DeviceSet& set, double seconds);
  std::optional<double> seconds() const;
  /// An interpolation between any sets.
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
  std::array<Sizes, 3> by_kinds_;  ///< the same kinds, more kinds, any
};

/// Is there a set of these devices (indices), of as many like them, or are there both smaller and larger ones of the
/// same kinds? Sets of several kinds: of each kind. True for a machine without measured sets.
bool has_measured(const MachineModel& machine, std::span<const int> members);

}  // namespace shoal::machine
