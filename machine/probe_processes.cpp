#include "machine/probe_processes.h"

#include <fmt/format.h>

#include <algorithm>
#include <map>
#include <memory>

#include "base/error.h"
#include "machine/host_links.h"
#include "machine/probe_links.h"
#include "machine/probe_trial.h"
#include "machine/sets.h"
#include "processes/remote_device.h"

namespace shoal::machine {
namespace {

/// Adds what a process has measured, under the names that all use.
void add(MachineModel& all, MachineModel own, int process, const ProcessGroup& group) {
  const auto rename = [&](std::vector<std::string>& members) {
    for (std::string& member : members) member = name_in_process(process, member);
  };
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
  for (CollectiveTable& table : own.collectives) rename(table.members), all.collectives.push_back(std::move(table));
  for (RunCost& run : own.runs) rename(run.members), all.runs.push_back(std::move(run));
  if (!own.disturbance.empty()) {
    all.disturbance += fmt::format("{}process {}: {}", all.disturbance.empty() ? "" : "; ", process, own.disturbance);
  }
}

/// The slowest copies of the processes; one that has a single device has measured none.
void take_copies(MachineModel& all, std::span<const MachineModel> processes) {
  bool is_first = true;
  for (const MachineModel& own : processes) {
    if (own.devices.size() < 2) continue;
    all.copy_latency = is_first ? own.copy_latency : std::max(all.copy_latency, own.copy_latency);
    all.copy_bandwidth = is_first ? own.copy_bandwidth : std::min(all.copy_bandwidth, own.copy_bandwidth);
    is_first = false;
  }
}

/// All devices; where processes have several of them the first of each; and where there are several hosts those of each
/// host that has several processes. What one process has by itself it has measured.
std::vector<std::vector<Device*>> sets_of(std::span<Device* const> devices, const ProcessGroup& group) {
  const auto process = [&](const Device* device) { return process_of(*device, group.own()); };
  const std::vector<Device*> all(devices.begin(), devices.end());
  std::vector<Device*> first;
  std::map<int, std::vector<Device*>> by_host;
  for (Device* device : devices) {
    by_host[group.node(process(device))].push_back(device);
    const bool is_first = std::none_of(first.begin(), first.end(),
                                       [&](const Device* other) { return process(other) == process(device); });
    if (is_first) first.push_back(device);
  }
  std::vector<std::vector<Device*>> sets;
  for (auto& [host, members] : by_host) {
    const int first_process = process(members.front());
    const bool is_of_several = std::any_of(members.begin(), members.end(),
                                           [&](const Device* device) { return process(device) != first_process; });
    if (is_of_several && by_host.size() > 1) sets.push_back(std::move(members));
  }
  if (first.size() > 1 && first.size() < all.size()) sets.push_back(std::move(first));
  sets.push_back(all);
  std::erase_if(sets, [&](const auto& set) {
    return std::all_of(set.begin(), set.end(), [&](Device* device) { return process(device) == process(set.front()); });
  });
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

/// The others are told what to do before they can run.
double seconds_to_tell(const MachineModel& machine, const std::vector<std::string>& members) {
  std::vector<int> indices;
  for (const std::string& member : members) indices.push_back(machine.index(member));
  const bool over_network = machine.by_host(indices).size() > 1;
  return slowest(machine.links, over_network).value_or(Network{}).latency;
}

/// For sets that were not measured; hosts are added to what one of them takes.
std::vector<CollectiveAlgorithm> fit_within_hosts(const MachineModel& machine) {
  MachineModel within = machine;
  std::erase_if(within.collectives, [&](const CollectiveTable& table) {
    const auto set = DeviceSet::of(machine, table.members);
    return !set || machine.by_host(set->members()).size() > 1;
  });
  return fit_algorithms(within);
}

}  // namespace

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
    processes.push_back(text.empty() ? MachineModel{} : parse_machine(text, group.describe(process)));
  }
  take_copies(machine, processes);
  for (int process = 0; process < group.size(); ++process) {
    add(machine, std::move(processes[static_cast<size_t>(process)]), process, group);
  }
  add_links(machine, measure_links(group));
  for (const std::vector<Device*>& set : sets_of(devices, group)) {
    std::vector<std::unique_ptr<Backend>> backends;
    std::vector<Backend*> pointers;
    RunCost run;
    for (Device* device : set) {
      pointers.push_back(backends.emplace_back(device->init(probe_params(*device, options.threads))).get());
      run.members.push_back(common_name(*device, &group));
      run.seconds =
          std::max(run.seconds, machine.devices[static_cast<size_t>(machine.index(run.members.back()))].run_seconds);
    }
    const size_t largest = options.quick ? 4 * kMega : 16 * kMega;
    const auto tables = measure_collectives(pointers, 0, largest, options.comm, &group);
    machine.collectives.insert(machine.collectives.end(), tables.begin(), tables.end());
    run.seconds += seconds_to_tell(machine, run.members);
    machine.runs.push_back(std::move(run));
  }
  machine.algorithms = fit_within_hosts(machine);
  return parse_machine(group.broadcast(to_json(machine), "probe"), "process 0");
}

}  // namespace shoal::machine
