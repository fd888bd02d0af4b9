// Costs of a run outside the steps of its plans. Predictions (predict.h) add these costs. Pure functions.
#pragma once

#include "machine/machine.h"
#include "models/session/model_plan.h"

namespace shoal::tuning {

/// Seconds to copy the caller's inputs to the devices, to start the run and to wait for its end.
double host_seconds(const machine::MachineModel& machine, const models::Placement& placement);

/// Seconds of the copy with index `number` in a split. A copy from another host also passes over the network. Only the
/// first such copy of a split pays the network latency, because the next copies follow immediately. If the copy streams
/// a weight with experts, only the used experts are copied. A copy of the caller's own inputs costs 0, because
/// host_seconds() includes it.
double copy_seconds(const machine::MachineModel& machine, const models::Placement& placement, const sched::Split& split,
                    size_t number);

/// Seconds to copy the results to the host, if the devices do not use host memory. If another process or host has the
/// results, also includes the transfer to the first process.
double output_seconds(const machine::MachineModel& machine, const models::Placement& placement,
                      const models::PlannedGraph& planned);

}  // namespace shoal::tuning
