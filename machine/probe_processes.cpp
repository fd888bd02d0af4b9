#include "machine/probe_processes.h"

#include <fmt/format.h>

#include <algorithm>
#include <memory>

#include "base/error.h"
#include "machine/probe_links.h"
#include "machine/probe_trial.h"
#include "processes/remote_device.h"

namespace shoal::machine {
namespace {

/// Adds what a process has measured, under the names that all use.
void add(MachineModel& all, MachineModel own, int process, const std::string& host) {
  const auto rename = [&](std::vector<std::string>& members) {
    for (std::string& member : members) member = name_in_process(process, member);
  };
  const int before = static_cast<int>(all.domains.size());
  for (Domain& domain : own.domains) {
    domain.name = fmt::format("{}/{}/{}", host, process, domain.name);
    all.domains.push_back(std::move(domain));
  }
  for (DeviceModel& device : own.devices) {
    device.name = name_in_process(process, device.name);
    device.domain += before;
    all.devices.push_back(std::move(device));
  }
  for (CollectiveTable& table : own.collectives) rename(table.members), all.collectives.push_back(std::move(table));
  for (RunCost& run : own.runs) rename(run.members), all.runs.push_back(std::move(run));
  if (!own.disturbance.empty()) {
    all.disturbance += fmt::format("{}process {}: {}", all.disturbance.empty() ? "" : "; ", process, own.disturbance);
  }
}

/// All devices, and where processes have several of them the first of each.
std::vector<std::vector<Device*>> sets_of(std::span<Device* const> devices, int own) {
  std::vector<Device*> all(devices.begin(), devices.end()), first;
  for (Device* device : devices) {
    const bool is_first = std::none_of(first.begin(), first.end(), [&](const Device* other) {
      return process_of(*other, own) == process_of(*device, own);
    });
    if (is_first) first.push_back(device);
  }
  if (first.size() < 2 || first.size() == all.size()) return {all};
  return {first, all};
}

/// Seconds of `times` messages of a size to another process and back.
double seconds_of_passage(ProcessGroup& group, int peer, std::span<std::byte> bytes, int times) {
  return seconds_of([&] {
    for (int i = 0; i < times; ++i) {
      if (group.own() == 0) group.send(peer, group.passage_tag(peer), bytes, "probe");
      group.receive(peer, group.passage_tag(peer), bytes, "probe");
      if (group.own() != 0) group.send(peer, group.passage_tag(peer), bytes, "probe");
    }
  });
}

}  // namespace

Passage measure_passages(ProcessGroup& group) {
  constexpr size_t kSmall = 1024, kLarge = 4 * kMega;
  constexpr int kSmallTimes = 50, kLargeTimes = 2, kRounds = 5;
  std::vector<std::byte> bytes(kLarge);
  Passage worst;
  for (int peer = 1; peer < group.size(); ++peer) {
    group.gather("", "probe");  // the others wait here
    if (group.own() != 0 && group.own() != peer) continue;
    const int other = group.own() == 0 ? peer : 0;
    std::vector<double> small, large;
    for (int round = 0; round < kRounds; ++round) {
      small.push_back(seconds_of_passage(group, other, std::span(bytes).first(kSmall), kSmallTimes) / kSmallTimes / 2);
      large.push_back(seconds_of_passage(group, other, bytes, kLargeTimes) / kLargeTimes / 2);
    }
    const double latency = median(small), whole = median(large);
    const double bandwidth = static_cast<double>(kLarge) / std::max(whole - latency, whole / 2);
    worst.latency = std::max(worst.latency, latency);
    worst.bandwidth = worst.bandwidth == 0 ? bandwidth : std::min(worst.bandwidth, bandwidth);
  }
  group.gather("", "probe");
  return worst;
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
  for (int process = 0; process < group.size(); ++process) {
    const std::string& text = all[static_cast<size_t>(process)];
    if (!text.empty()) add(machine, parse_machine(text, group.describe(process)), process, group.host(process));
  }
  const Passage passage = measure_passages(group);
  for (const std::vector<Device*>& set : sets_of(devices, group.own())) {
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
    run.seconds += passage.latency;  // the others are told what to do
    machine.runs.push_back(std::move(run));
  }
  machine.algorithms = fit_algorithms(machine);
  machine.copy_latency += passage.latency;
  machine.copy_bandwidth = std::min(machine.copy_bandwidth, passage.bandwidth);
  return parse_machine(group.broadcast(to_json(machine), "probe"), "process 0");
}

}  // namespace shoal::machine
