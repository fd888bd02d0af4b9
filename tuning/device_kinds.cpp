#include "tuning/device_kinds.h"

#include <fmt/format.h>
#include <fmt/ranges.h>

#include <algorithm>
#include <cmath>
#include <map>

namespace shoal::tuning {
namespace {

/// Figures that differ by less are alike: measurements do, and so does what is free of the same memory.
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

/// By everything but their names and domains.
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

}  // namespace

DeviceKinds::DeviceKinds(std::span<Device* const> devices, const machine::MachineModel& machine) : machine_(machine) {
  for (const machine::DeviceModel& device : machine.devices) memory_.push_back(static_cast<double>(device.memory));
  for (const Device* device : devices) memory_[index_of(*device)] = static_cast<double>(device->memory().free);
  const auto number = [](size_t count, const auto& alike) {
    std::vector<size_t> numbers;
    for (size_t i = 0; i < count; ++i) {
      size_t first = 0;
      while (first < i && !alike(first, i)) ++first;
      numbers.push_back(first);
    }
    return numbers;
  };
  kinds_ = number(machine.devices.size(), [&](size_t a, size_t b) { return are_alike(a, b); });
  domain_kinds_ = number(machine.domains.size(), [&](size_t a, size_t b) { return are_domains_alike(a, b); });
}

bool DeviceKinds::are_alike(size_t a, size_t b) const {
  return alike(machine_.devices[a], machine_.devices[b]) && alike(memory_[a], memory_[b]);
}

bool DeviceKinds::are_domains_alike(size_t a, size_t b) const {
  const machine::Domain &x = machine_.domains[a], &y = machine_.domains[b];
  return alike(x.bandwidth, y.bandwidth) && alike(x.cores, y.cores) && kinds_in(a) == kinds_in(b);
}

std::vector<size_t> DeviceKinds::kinds_in(size_t domain) const {
  std::vector<size_t> kinds;
  for (size_t i = 0; i < kinds_.size(); ++i) {
    if (static_cast<size_t>(machine_.devices[i].domain) == domain) kinds.push_back(kinds_[i]);
  }
  std::sort(kinds.begin(), kinds.end());
  return kinds;
}

size_t DeviceKinds::domain_of(const Device& device) const {
  return static_cast<size_t>(machine_.devices[index_of(device)].domain);
}

std::string DeviceKinds::of(std::span<Device* const> set) const {
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

std::vector<size_t> DeviceKinds::exchangeable(std::span<Device* const> set) const {
  std::map<size_t, int> used;
  for (const Device* device : set) ++used[domain_of(*device)];
  std::map<std::string, size_t> numbers;
  std::vector<size_t> out;
  for (const Device* device : set) {
    const size_t domain = domain_of(*device);
    const std::string place =
        used[domain] == 1 ? fmt::format("alone in one like {}", domain_kinds_[domain]) : fmt::format("in {}", domain);
    const std::string text = fmt::format("{} {}", kinds_[index_of(*device)], place);
    out.push_back(numbers.emplace(text, numbers.size()).first->second);
  }
  return out;
}

}  // namespace shoal::tuning
