#include "tuning/probe/probe_processes.h"

#include <fmt/format.h>

#include <algorithm>
#include <map>
#include <memory>
#include <nlohmann/json.hpp>
#include <utility>

#include "base/error.h"
#include "processes/remote_device.h"
#include "tuning/probe/probe_links.h"
#include "tuning/probe/probe_trial.h"

namespace shoal::probe {
namespace {

constexpr const char* kLinks = "links between hosts";
constexpr size_t kShort = 1024, kLong = 4 * kMega;
constexpr int kShortTimes = 50, kLinkRounds = 6;

/// Pairs of processes: one for each pair of hosts, and one for each host that has several processes.
std::vector<std::pair<int, int>> pairs_of(const ProcessGroup& group) {
  std::vector<std::pair<int, int>> pairs;
  for (int node = 0; node < group.nodes(); ++node) {
    const std::vector<int> processes = group.processes_of(node);
    for (int other = node + 1; other < group.nodes(); ++other) {
      pairs.emplace_back(processes[0], group.processes_of(other)[0]);
    }
    if (processes.size() > 1) pairs.emplace_back(processes[0], processes[1]);
  }
  return pairs;
}

/// Host name of a process. The name is unique even if several containers have the same host name.
std::string unique_host(const ProcessGroup& group, int process) {
  const int node = group.node(process);
  const std::string& name = group.host(process);
  for (int other = 0; other < node; ++other) {
    if (group.host(group.processes_of(other)[0]) == name) return fmt::format("{}/{}", name, node);
  }
  return name;
}

/// Seconds of one message to the other process, measured as half of a round trip.
double seconds_of_message(ProcessGroup& group, int peer, bool begins, std::span<std::byte> bytes) {
  return seconds_of([&] {
           if (begins) group.send(peer, group.passage_tag(peer), bytes, kLinks);
           group.receive(peer, group.passage_tag(peer), bytes, kLinks);
           if (!begins) group.send(peer, group.passage_tag(peer), bytes, kLinks);
         }) /
         2;
}

Network measure_link(ProcessGroup& group, int peer, bool begins) {
  std::vector<std::byte> bytes(kLong);
  std::vector<double> small, large;
  // Measures each message separately. So a delay by another program affects only one sample, which the median ignores.
  for (int round = 0; round < kLinkRounds; ++round) {
    for (int i = 0; i < kShortTimes; ++i) {
      small.push_back(seconds_of_message(group, peer, begins, std::span(bytes).first(kShort)));
    }
    large.push_back(seconds_of_message(group, peer, begins, bytes));
  }
  const double latency = median(small), whole = median(large);
  return {latency, static_cast<double>(kLong) / std::max(whole - latency, whole / 2)};
}

/// Adds the measurements of one process. Renames its devices to the names that all processes use.
void add(MachineModel& all, MachineModel own, int process, const ProcessGroup& group) {
  const int before = static_cast<int>(all.domains.size());
  for (Domain& domain : own.domains) {
    domain.name = fmt::format("{}/{}/{}", group.host(process), process, domain.name);
    all.domains.push_back(std::move(domain));
  }
  for (DeviceModel& device : own.devices) {
    device.name = name_in_process(process, device.name);
    device.domain += before;
    device.host = group.node(process);
    all.devices.push_back(std::move(device));
  }
  for (CollectiveTable& table : own.collectives) {
    for (std::string& member : table.members) member = name_in_process(process, member);
    all.collectives.push_back(std::move(table));
  }
  if (!own.disturbance.empty()) {
    all.disturbance += fmt::format("{}process {}: {}", all.disturbance.empty() ? "" : "; ", process, own.disturbance);
  }
}

/// Takes the highest latency and the lowest bandwidth among all processes. Skips processes with one device, because
/// such processes do not measure copies.
void take_copies(MachineModel& all, std::span<const MachineModel> processes) {
  bool is_first = true;
  for (const MachineModel& own : processes) {
    if (own.devices.size() < 2) continue;
    all.copy_latency = is_first ? own.copy_latency : std::max(all.copy_latency, own.copy_latency);
    all.copy_bandwidth = is_first ? own.copy_bandwidth : std::min(all.copy_bandwidth, own.copy_bandwidth);
    is_first = false;
  }
}

/// Sets of devices from several processes: the set with the first device of each process, and the set of all devices.
/// Omits sets within one process, because that process has already measured them.
std::vector<std::vector<Device*>> sets_of(std::span<Device* const> devices, const ProcessGroup& group) {
  std::map<int, Device*> first;
  for (Device* device : devices) first.try_emplace(process_of(*device, group.own()), device);
  if (first.size() < 2) return {};
  std::vector<std::vector<Device*>> sets(first.size() < devices.size() ? 2 : 1);
  if (sets.size() > 1) {
    for (const auto& [process, device] : first) sets.front().push_back(device);
  }
  sets.back().assign(devices.begin(), devices.end());
  return sets;
}

void add_links(MachineModel& machine, std::vector<HostLink> links) {
  machine.network = slowest(links, true);
  if (const auto inside = slowest(links, false)) {
    machine.copy_latency += inside->latency;
    machine.copy_bandwidth = std::min(machine.copy_bandwidth, inside->bandwidth);
  }
  machine.links = std::move(links);
}

}  // namespace

std::vector<HostLink> measure_links(ProcessGroup& group) {
  std::vector<HostLink> links;
  for (const auto& [from, to] : pairs_of(group)) {
    Network speed;
    if (group.own() == from) speed = measure_link(group, to, true);
    if (group.own() == to) speed = measure_link(group, from, false);
    const std::vector<std::string> all = group.gather(nlohmann::json{speed.latency, speed.bandwidth}.dump(), kLinks);
    const auto told = nlohmann::json::parse(all[static_cast<size_t>(from)]);
    links.push_back({unique_host(group, from), unique_host(group, to), {told[0], told[1]}});
  }
  return links;
}

std::optional<Network> slowest(std::span<const HostLink> links, bool between_hosts) {
  std::optional<Network> slowest;
  for (const HostLink& link : links) {
    if ((link.from != link.to) != between_hosts) continue;
    if (!slowest) slowest = link.speed;
    slowest->latency = std::max(slowest->latency, link.speed.latency);
    slowest->bandwidth = std::min(slowest->bandwidth, link.speed.bandwidth);
  }
  return slowest;
}

MachineModel probe_everywhere(ProcessGroup& group, std::span<Device* const> devices, const ProbeOptions& options) {
  std::vector<Device*> own;
  for (Device* device : devices) {
    if (!is_remote(*device)) own.push_back(device);
  }
  size_t turns = 0;
  for (int node = 0; node < group.nodes(); ++node) turns = std::max(turns, group.processes_of(node).size());
  const std::vector<int> neighbours = group.processes_of(group.node(group.own()));
  std::string measured;
  for (size_t turn = 0; turn < turns; ++turn) {
    const bool is_mine = turn < neighbours.size() && neighbours[turn] == group.own();
    if (is_mine && !own.empty()) measured = to_json(probe(own, options));
    group.gather("", "probe");
  }
  MachineModel machine;
  machine.name = "local";
  const std::vector<std::string> all = group.gather(measured, "probe");
  std::vector<MachineModel> processes;
  for (int process = 0; process < group.size(); ++process) {
    const std::string& text = all[static_cast<size_t>(process)];
    processes.push_back(text.empty() ? MachineModel{} : machine::parse_machine(text, group.describe(process)));
  }
  take_copies(machine, processes);
  for (int process = 0; process < group.size(); ++process) {
    add(machine, std::move(processes[static_cast<size_t>(process)]), process, group);
  }
  add_links(machine, measure_links(group));
  for (const std::vector<Device*>& set : sets_of(devices, group)) {
    std::vector<std::unique_ptr<Backend>> backends;
    std::vector<Backend*> pointers;
    for (Device* device : set) {
      pointers.push_back(backends.emplace_back(device->init(probe_params(*device, options.threads))).get());
    }
    machine.collectives.push_back(
        measure_collectives(pointers, 0, largest_message(options.quick), options.comm, &group));
  }
  return machine::parse_machine(group.broadcast(to_json(machine), "probe"), "process 0");
}

}  // namespace shoal::probe
