// Costs of a run that are not part of the steps of its plans. Predictions (predict.h) add these costs. Pure functions.
#pragma once

#include "machine/machine.h"
#include "models/session/model_plan.h"

namespace shoal::tuning {

/// Seconds to copy the caller's inputs to the devices, to start the run, and to wait for the end of the run.
double host_seconds(const machine::MachineModel& machine, const models::Placement& placement);

/// Duration of `split.copies[number]` in seconds. A copy from another host also passes over the network. The duration
/// includes the network latency only for the first such copy of a split, because the next copies follow immediately. If
/// the copy streams a weight with experts, only the used experts are copied. A copy of the caller's own inputs costs 0,
/// because host_seconds() includes it.
double copy_seconds(const machine::MachineModel& machine, const models::Placement& placement, const sched::Split& split,
                    size_t number);

/// Seconds to copy the results of the last split to host memory (0 for CPU devices). If all devices of this split
/// belong to other processes or to another host, the time also includes the transfer to the first process.
double output_seconds(const machine::MachineModel& machine, const models::Placement& placement,
                      const models::PlannedGraph& planned);

}  // namespace shoal::tuning
