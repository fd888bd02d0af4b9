#include "machine/machine.h"

#include <fmt/format.h>

#include <algorithm>
#include <cmath>
#include <limits>

#include "base/error.h"
#include "machine/sets.h"
#include "processes/remote_device.h"

namespace shoal::machine {
namespace {

/// Number of bytes that a rank sends, divided by the number of bytes of the full tensor. Each rank processes an equal
/// part of the data.
double traffic_of(Collective kind, int ranks) {
  return bus_factor(kind, ranks) / (info(kind).is_pairwise() ? ranks : 1);  // in a pairwise collective, each rank has
                                                                            // 1/n of the tensor
}

double table_seconds(const CollectiveTable& table, double bytes) {
  const auto& points = table.points;
  const auto above = std::upper_bound(points.begin(), points.end(), bytes,
                                      [](double value, const auto& point) { return value < point.bytes; });
  if (above == points.begin() || points.size() == 1) return points.front().seconds;
  const auto right = above == points.end() ? above - 1 : above;
  const auto left = right - 1;
  const double slope = (right->seconds - left->seconds) / (right->bytes - left->bytes);
  // Because of noise, the last point may be faster than the previous point. Even so, a longer message is never
  // predicted to be faster than the last point.
  if (above == points.end()) return right->seconds + std::max(slope, 0.0) * (bytes - right->bytes);
  return left->seconds + slope * (bytes - left->bytes);
}

double algorithm_seconds(const CollectiveAlgorithm& algorithm, Collective kind, int ranks, double bytes) {
  const double traffic = algorithm.one_shot ? ranks - 1 : traffic_of(kind, ranks);
  return algorithm.latency + algorithm.latency_per_rank * (ranks - 1) + traffic * bytes / algorithm.bandwidth;
}

bool has_members(std::span<const std::string> names, std::span<const int> members,
                 const std::vector<DeviceModel>& devices) {
  return std::equal(
      names.begin(), names.end(), members.begin(), members.end(),
      [&](const std::string& name, int member) { return name == devices[static_cast<size_t>(member)].name; });
}

}  // namespace

double rough_collective_seconds(Collective kind, int ranks, double bytes, const Network& links) {
  const double in_phases = info(kind).phases * links.latency + traffic_of(kind, ranks) * bytes / links.bandwidth;
  // Small messages need only one phase: each rank reads the messages of all other ranks.
  return std::min(in_phases, links.latency + (ranks - 1) * bytes / links.bandwidth);
}

std::vector<DType> weight_dtypes() {
  std::vector<DType> found;
  for (int i = 0; i < kDTypeCount; ++i) {
    const auto dtype = static_cast<DType>(i);
    if (traits(dtype).is_float || traits(dtype).is_quantized) found.push_back(dtype);
  }
  return found;
}

double element_bytes(DType dtype) {
  return static_cast<double>(traits(dtype).block_bytes) / static_cast<double>(traits(dtype).block_elems);
}

ProductModel product_at_rate(double rate, double bytes_per_second, DType dtype) {
  const double reading = element_bytes(dtype) / bytes_per_second, column = 2 / rate;
  ProductModel model;
  const double level = std::min(std::floor(reading / column), 1e9);
  if (level >= 1) model.streamed.push_back({1, reading});
  if (level > 1) model.streamed.push_back({static_cast<int64_t>(level), reading});
  model.streamed.push_back({static_cast<int64_t>(level) + 1, (level + 1) * column});
  return model;
}

void add_products(DeviceModel& device, double rate, double bytes_per_second) {
  for (const DType dtype : weight_dtypes()) {
    device.products.try_emplace(std::string(name_of(dtype)), product_at_rate(rate, bytes_per_second, dtype));
  }
}

double ProductModel::seconds(double columns, bool in_cache) const {
  const auto& points = (in_cache && !cached.empty()) || streamed.empty() ? cached : streamed;
  check(!points.empty(), "a product model has no points");
  const auto above = std::upper_bound(
      points.begin(), points.end(), columns,
      [](double value, const ProductPoint& point) { return value < static_cast<double>(point.columns); });
  if (above == points.begin()) return above->seconds;
  const ProductPoint& left = *(above - 1);
  const double from = static_cast<double>(left.columns);
  if (above == points.end()) return left.seconds * columns / from;
  const double part = (columns - from) / (static_cast<double>(above->columns) - from);
  return left.seconds + part * (above->seconds - left.seconds);
}

int MachineModel::index(std::string_view device) const {
  std::string known;
  for (size_t i = 0; i < devices.size(); ++i) {
    if (devices[i].name == device) return static_cast<int>(i);
    known += (known.empty() ? "" : ", ") + devices[i].name;
  }
  fail<InvalidArgument>("machine {} has no device '{}'; it has {}", name, device, known.empty() ? "none" : known);
}

std::vector<std::vector<int>> MachineModel::by_host(std::span<const int> members) const {
  if (!network) return {{members.begin(), members.end()}};
  const auto host_of = [&](int member) { return devices[static_cast<size_t>(member)].host; };
  std::vector<std::vector<int>> hosts;
  for (const int member : members) {
    const auto known = std::find_if(hosts.begin(), hosts.end(),
                                    [&](const auto& host) { return host_of(host.front()) == host_of(member); });
    if (known != hosts.end()) {
      known->push_back(member);
    } else {
      hosts.push_back({member});
    }
  }
  return hosts;
}

double MachineModel::run_seconds(std::span<const int> members) const {
  double seconds = 0;
  for (const int member : members) seconds = std::max(seconds, devices[static_cast<size_t>(member)].run_seconds);
  return by_host(members).size() > 1 ? seconds + network->latency : seconds;
}

double MachineModel::collective_seconds(Collective kind, std::span<const int> members, double bytes) const {
  const int ranks = static_cast<int>(members.size());
  if (ranks <= 1) return 0;
  for (const CollectiveTable& table : collectives) {
    const bool is_it = !table.points.empty() && table.kind == kind && has_members(table.members, members, devices);
    if (is_it) return table_seconds(table, bytes);
  }
  if (const auto hosts = by_host(members); hosts.size() > 1) {
    double inside = 0;
    for (const auto& host : hosts) inside = std::max(inside, collective_seconds(kind, host, bytes));
    return inside + rough_collective_seconds(kind, static_cast<int>(hosts.size()), bytes, *network);
  }
  MeasuredSets same(DeviceSet(*this, members)), other = same;
  for (const CollectiveTable& table : collectives) {
    if (table.points.empty()) continue;
    const double seconds = table_seconds(table, bytes);
    const auto set = DeviceSet::of(*this, table.members);
    if (!set || by_host(set->members()).size() > 1) continue;
    const int others = static_cast<int>(set->size());
    if (table.kind == kind) same.add(*set, seconds);
    if (table.kind != kind) other.add(*set, seconds * traffic_of(kind, others) / traffic_of(table.kind, others));
  }
  if (const auto seconds = same.seconds()) return *seconds;
  double best = std::numeric_limits<double>::infinity();
  for (const CollectiveAlgorithm& algorithm : algorithms) {
    best = std::min(best, algorithm_seconds(algorithm, kind, ranks, bytes));
  }
  if (!algorithms.empty()) return best;
  for (const auto& seconds : {other.seconds(), same.seconds_of_any(), other.seconds_of_any()}) {
    if (seconds) return *seconds;
  }
  return rough_collective_seconds(kind, ranks, bytes);
}

MachineModel several_hosts(const MachineModel& one, int hosts, const Network& network) {
  MachineModel all = one;
  all.network = network;
  for (int host = 1; host < hosts; ++host) {
    const auto renamed = [host](const std::string& name) { return name_in_process(host, name); };
    const int domains = static_cast<int>(all.domains.size());
    for (Domain domain : one.domains) {
      domain.name = renamed(domain.name);
      all.domains.push_back(std::move(domain));
    }
    for (DeviceModel device : one.devices) {
      device.name = renamed(device.name);
      device.domain += domains;
      device.host = host;
      all.devices.push_back(std::move(device));
    }
    for (CollectiveTable table : one.collectives) {
      for (std::string& member : table.members) member = renamed(member);
      all.collectives.push_back(std::move(table));
    }
  }
  return all;
}

}  // namespace shoal::machine
