#include "tuning/run_cost.h"

#include <algorithm>

#include "processes/remote_device.h"
#include "tuning/estimate.h"

namespace shoal::tuning {

double host_seconds(const machine::MachineModel& machine, const models::Placement& placement) {
  std::vector<int> all;
  for (size_t d = 0; d < placement.devices().size(); ++d) {
    for (const Device* member : placement.members_of(static_cast<int>(d))) {
      const int index = machine.index(member->name());
      if (std::find(all.begin(), all.end(), index) == all.end()) all.push_back(index);
    }
  }
  return machine.run_seconds(all);
}

namespace {

/// The host of a backend's first member. If the members are on several hosts, each of these hosts has the results.
int host_of(const machine::MachineModel& machine, std::span<Device* const> members) {
  return machine.devices[static_cast<size_t>(machine.index(members.front()->name()))].host;
}

/// Whether the two backends are on different hosts.
bool are_apart(const machine::MachineModel& machine, const models::Placement& placement, int from, int to) {
  return machine.network && from >= 0 &&
         host_of(machine, placement.members_of(from)) != host_of(machine, placement.members_of(to));
}

/// Seconds to stream a weight from the host. All members of a mesh receive their shards at the same time, each over its
/// own bus. The memory bandwidth of the host limits the total bandwidth of these transfers.
double streaming_seconds(const machine::MachineModel& machine, const models::Placement& placement, int backend,
                        const sched::Copy& copy, double bytes) {
  const models::SplitPolicy* policy = placement.policy_of(backend);
  double largest = 1, all = 1;
  if (policy != nullptr && policy->devices() > 1) {
    const meta::Layout layout = meta::to_layout((*policy)(*copy.tensor), *copy.tensor, policy->devices());
    const auto ranks = static_cast<double>(policy->devices());
    if (layout.is_split()) {
      const auto elements = static_cast<double>(copy.tensor->elements());
      largest = 0;
      for (int rank = 0; rank < policy->devices(); ++rank) {
        const Shape part = layout.local_shape(copy.tensor->shape, rank);
        largest = std::max(largest, static_cast<double>(part[0] * part[1] * part[2] * part[3]) / elements);
      }
    } else {
      all = ranks;
    }
  }
  const Device& home = *placement.members_of(copy.from_backend).front();
  const double memory = machine.devices[static_cast<size_t>(machine.index(home.name()))].bandwidth;
  return std::max(largest * bytes / machine.copy_bandwidth, memory > 0 ? all * bytes / memory : 0.0);
}

}  // namespace

double copy_seconds(const machine::MachineModel& machine, const models::Placement& placement, const sched::Split& split,
                    size_t number) {
  const sched::Copy& copy = split.copies[number];
  if (copy.from_split < 0 && copy.from_backend < 0 && !copy.streamed) return 0;
  const double part = copy.ids == nullptr ? 1 : machine::used_experts(*copy.tensor, *copy.ids);
  const double bytes = part * static_cast<double>(copy.bytes);
  const double passing = copy.streamed && copy.from_backend >= 0
                             ? streaming_seconds(machine, placement, split.backend, copy, bytes)
                             : bytes / machine.copy_bandwidth;
  const double seconds = machine.copy_latency + passing;
  const auto is_far = [&](const sched::Copy& one) {
    return are_apart(machine, placement, one.from_backend, split.backend);
  };
  if (!is_far(copy)) return seconds;
  const bool follows =
      std::any_of(split.copies.begin(), split.copies.begin() + static_cast<std::ptrdiff_t>(number), is_far);
  return seconds + (follows ? 0 : machine.network->latency) + bytes / machine.network->bandwidth;
}

double output_seconds(const machine::MachineModel& machine, const models::Placement& placement,
                      const models::PlannedGraph& planned) {
  if (planned.schedule.splits.empty()) return 0;
  const int last = planned.schedule.splits.back().backend;
  const auto members = placement.members_of(last);
  const auto is_host = [&](const Device* member) {
    return machine.devices[static_cast<size_t>(machine.index(member->name()))].type == DeviceType::kCpu;
  };
  const bool is_far = are_apart(machine, placement, last, 0);
  const bool needs_copy = !std::all_of(members.begin(), members.end(), is_host);
  const bool is_elsewhere =
      !is_far && std::all_of(members.begin(), members.end(), [](const Device* member) { return is_remote(*member); });
  if (!needs_copy && !is_far && !is_elsewhere) return 0;
  const models::DecoderGraph& graph = planned.graph;
  const size_t bytes = graph.candidate_ids == nullptr ? graph.logits->bytes()
                                                      : graph.candidate_ids->bytes() + graph.candidate_logits->bytes();
  const auto size = static_cast<double>(bytes);
  return (is_elsewhere ? machine.copy_latency : 0) + (needs_copy || is_elsewhere ? size / machine.copy_bandwidth : 0) +
         (is_far ? machine.network->latency + size / machine.network->bandwidth : 0);
}

}  // namespace shoal::tuning
