#include "models/device_kinds.h"

#include <fmt/format.h>
#include <fmt/ranges.h>

#include <algorithm>
#include <cmath>
#include <map>

namespace shoal::models {
namespace {

/// Figures that differ by less are alike: measurements do, and so does what is free of the same memory.
constexpr double kAlike = 0.1;

bool alike(double a, double b) {
  return std::abs(a - b) <= kAlike * std::max(std::abs(a), std::abs(b));
}

bool alike(const std::vector<meta::ProductPoint>& a, const std::vector<meta::ProductPoint>& b) {
  return std::equal(a.begin(), a.end(), b.begin(), b.end(),
                    [](const auto& x, const auto& y) { return x.columns == y.columns && alike(x.seconds, y.seconds); });
}

bool alike(const meta::ProductModel& a, const meta::ProductModel& b) {
  return alike(a.streamed, b.streamed) && alike(a.cached, b.cached) && alike(a.conversion, b.conversion);
}

/// By everything but their names and domains.
bool alike(const meta::DeviceModel& a, const meta::DeviceModel& b) {
  if (a.identity != b.identity || a.type != b.type) return false;
  for (const auto figure : {&meta::DeviceModel::cores, &meta::DeviceModel::bandwidth, &meta::DeviceModel::cache_bytes,
                            &meta::DeviceModel::activation_bandwidth, &meta::DeviceModel::attention_rate,
                            &meta::DeviceModel::attention_bandwidth, &meta::DeviceModel::op_seconds,
                            &meta::DeviceModel::step_seconds, &meta::DeviceModel::run_seconds}) {
    if (!alike(a.*figure, b.*figure)) return false;
  }
  return std::equal(a.products.begin(), a.products.end(), b.products.begin(), b.products.end(),
                    [](const auto& x, const auto& y) { return x.first == y.first && alike(x.second, y.second); });
}

}  // namespace

DeviceKinds::DeviceKinds(std::span<Device* const> devices, const meta::MachineModel& machine) : machine_(machine) {
  for (const meta::DeviceModel& device : machine.devices) memory_.push_back(static_cast<double>(device.memory));
  for (const Device* device : devices) memory_[index_of(*device)] = static_cast<double>(device->memory().free);
  for (size_t i = 0; i < machine.devices.size(); ++i) {
    size_t first = 0;
    while (first < i && !are_alike(first, i)) ++first;
    kinds_.push_back(first);
  }
}

bool DeviceKinds::are_alike(size_t a, size_t b) const {
  return alike(machine_.devices[a], machine_.devices[b]) && alike(memory_[a], memory_[b]);
}

std::string DeviceKinds::text_of(int domain) const {
  std::vector<size_t> kinds;
  for (size_t i = 0; i < kinds_.size(); ++i) {
    if (machine_.devices[i].domain == domain) kinds.push_back(kinds_[i]);
  }
  std::sort(kinds.begin(), kinds.end());
  const meta::Domain& figures = machine_.domains[static_cast<size_t>(domain)];
  return fmt::format("{} ({:.2g}, {:.2g})", fmt::join(kinds, "|"), figures.bandwidth, figures.cores);
}

std::string DeviceKinds::of(std::span<Device* const> set) const {
  std::map<int, std::vector<size_t>> used;
  for (const Device* device : set) {
    used[machine_.devices[index_of(*device)].domain].push_back(kinds_[index_of(*device)]);
  }
  std::vector<std::string> domains;
  for (auto& [domain, kinds] : used) {
    std::sort(kinds.begin(), kinds.end());
    domains.push_back(fmt::format("{} of {}", fmt::join(kinds, "|"), text_of(domain)));
  }
  std::sort(domains.begin(), domains.end());
  return fmt::format("{}", fmt::join(domains, " and "));
}

std::vector<size_t> DeviceKinds::exchangeable(std::span<Device* const> set) const {
  std::map<int, int> used;
  for (const Device* device : set) ++used[machine_.devices[index_of(*device)].domain];
  std::map<std::string, size_t> numbers;
  std::vector<size_t> out;
  for (const Device* device : set) {
    const size_t index = index_of(*device);
    const int domain = machine_.devices[index].domain;
    const std::string place = used[domain] == 1 ? "alone in " + text_of(domain) : fmt::format("in {}", domain);
    out.push_back(numbers.emplace(fmt::format("{} {}", kinds_[index], place), numbers.size()).first->second);
  }
  return out;
}

}  // namespace shoal::models
