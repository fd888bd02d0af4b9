// Costs of a run that predictions (predict.h) add to the steps of its plans. Pure functions.
#pragma once

#include "machine/machine.h"
#include "models/session/model_plan.h"

namespace shoal::tuning {

/// Seconds to copy the caller's inputs to the devices, to start the run and to wait for its end.
double host_seconds(const machine::MachineModel& machine, const models::Placement& placement);

/// Seconds of one copy of a split, selected by its number. A copy from another host also passes over the network. Only
/// the first such copy pays the latency, because the next copies follow it directly. Only the used experts of a
/// streamed weight are copied. The caller's own inputs cost 0, because host_seconds() includes them.
double copy_seconds(const machine::MachineModel& machine, const models::Placement& placement, const sched::Split& split,
                    size_t number);

/// Seconds to copy the results to the host if the devices have other memory. Results on another process or host are
/// also sent to the first one.
double output_seconds(const machine::MachineModel& machine, const models::Placement& placement,
                      const models::PlannedGraph& planned);

}  // namespace shoal::tuning
