// Sets of devices that were measured together, and what they say of other sets. Used by machine/machine.cpp and by what
// decides which sets are measured.
#pragma once

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
  /// Both within one domain, both with a domain for each device, or neither.
  bool spreads_like(const DeviceSet& other) const { return spread() == other.spread(); }

 private:
  enum class Spread { kOneDomain, kOwnDomains, kSomeDomains };
  Spread spread() const;

  std::vector<int> members_;                 ///< ascending
  std::vector<int> kinds_;                   ///< ascending, each once
  std::vector<std::vector<int>> by_domain_;  ///< the kinds of its devices in each domain
  bool is_measured_ = true;
};

/// Collects what was measured of sets, and says what is to be expected of the one that is wanted. A set that was
/// measured counts first, then the mean of those that are alike, then those of the same kinds by size: between two
/// sizes a straight line, beyond the last as steep as between the last two. Sets that spread over domains as the wanted
/// one does come before others of their size. Where kinds are mixed as nowhere else, sets count that have all of them.
class MeasuredSets {
 public:
  explicit MeasuredSets(DeviceSet wanted) : wanted_(std::move(wanted)) {}
  void add(const DeviceSet& set, double seconds);
  std::optional<double> seconds() const;
  /// Of whatever sets there are, by size.
  std::optional<double> seconds_of_any() const { return by_size(all_); }

 private:
  struct Mean {
    double sum = 0;
    int count = 0;
    void add(double seconds) { sum += seconds, ++count; }
    double value() const { return sum / count; }
  };
  struct OfOneSize {
    Mean spread_alike, all;
    double value() const { return spread_alike.count > 0 ? spread_alike.value() : all.value(); }
  };
  using Sizes = std::map<size_t, OfOneSize>;

  std::optional<double> by_size(const Sizes& sizes) const;

  DeviceSet wanted_;
  std::optional<double> same_;
  Mean alike_;
  Sizes same_kinds_, more_kinds_, all_;
};

/// Is there a set of these devices (indices), of as many like them, or are there both smaller and larger ones of the
/// same kinds? Sets of several kinds: of each kind. True for a machine of which no sets were measured.
bool has_measured(const MachineModel& machine, std::span<const int> members);

}  // namespace shoal::machine
