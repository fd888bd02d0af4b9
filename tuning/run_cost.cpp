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

double copy_seconds(const machine::MachineModel& machine, const sched::Copy& copy) {
  if (copy.from_split < 0 && copy.from_backend < 0 && !copy.streamed) return 0;
  const double part = copy.ids == nullptr ? 1 : machine::used_experts(*copy.tensor, *copy.ids);
  return machine.copy_latency + part * static_cast<double>(copy.bytes) / machine.copy_bandwidth;
}

double output_seconds(const machine::MachineModel& machine, const models::Placement& placement,
                      const models::PlannedGraph& planned) {
  if (planned.schedule.splits.empty()) return 0;
  const auto members = placement.members_of(planned.schedule.splits.back().backend);
  const auto is_host = [&](const Device* member) {
    return machine.devices[static_cast<size_t>(machine.index(member->name()))].type == DeviceType::kCpu;
  };
  const bool is_elsewhere = std::all_of(members.begin(), members.end(), [](const Device* d) { return is_remote(*d); });
  if (!is_elsewhere && std::all_of(members.begin(), members.end(), is_host)) return 0;
  const models::DecoderGraph& graph = planned.graph;
  const size_t bytes = graph.candidate_ids == nullptr ? graph.logits->bytes()
                                                      : graph.candidate_ids->bytes() + graph.candidate_logits->bytes();
  return (is_elsewhere ? machine.copy_latency : 0) + static_cast<double>(bytes) / machine.copy_bandwidth;
}

}  // namespace shoal::tuning
