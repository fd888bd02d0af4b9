// What a run costs on a machine beside the steps of its plans: for predictions (predict.h). Pure functions.
#pragma once

#include "machine/machine.h"
#include "models/session/model_plan.h"

namespace shoal::tuning {

/// Bringing the caller's inputs to the devices, starting the run and waiting for its end.
double host_seconds(const machine::MachineModel& machine, const models::Placement& placement);

/// Of a copy, by number, that a split waits for. Over the network where it comes from another host; the way takes its
/// time once, as others follow the first. Of the experts in a streamed weight only those that are used are copied. 0
/// for the caller's own inputs, which are part of host_seconds().
double copy_seconds(const machine::MachineModel& machine, const models::Placement& placement, const sched::Split& split,
                    size_t number);

/// Bringing the results to the host from devices that have other memory, and to the first process or host from others.
double output_seconds(const machine::MachineModel& machine, const models::Placement& placement,
                      const models::PlannedGraph& planned);

}  // namespace shoal::tuning
