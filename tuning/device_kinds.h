// Devices of a machine by kind: those of a kind are the same to predictions, so that of several choices that differ
// only in which of them does what, one stands for all.
#pragma once

#include <span>
#include <string>
#include <vector>

#include "devices/device.h"
#include "machine/machine.h"

namespace shoal::tuning {

class DeviceKinds {
 public:
  /// Both must outlive it. What is free of the devices' memory is asked now.
  DeviceKinds(std::span<Device* const> devices, const machine::MachineModel& machine);

  /// What a set of devices is, the same for sets that are alike: for each domain what it has, and what of it is used.
  std::string of(std::span<Device* const> set) const;
  /// A number for each device of the set. Whatever is done by those with the same number may be exchanged between
  /// them: they are of one kind, and in one domain, or each alone of the set in domains that are alike.
  std::vector<size_t> exchangeable(std::span<Device* const> set) const;

 private:
  bool are_alike(size_t a, size_t b) const;
  /// By their figures and everything in them, used or not.
  bool are_domains_alike(size_t a, size_t b) const;
  /// Sorted.
  std::vector<size_t> kinds_in(size_t domain) const;
  size_t index_of(const Device& device) const { return static_cast<size_t>(machine_.index(device.name())); }
  size_t domain_of(const Device& device) const;

  const machine::MachineModel& machine_;
  std::vector<double> memory_;        ///< bytes that are free
  std::vector<size_t> kinds_;         ///< by device: the first of its kind
  std::vector<size_t> domain_kinds_;  ///< by domain: the first that is alike
};

}  // namespace shoal::tuning
