// The virtual timeline of `shoal simulate --trace`: what every device of a machine would do, and when.
#pragma once

#include <vector>

#include "devices/trace.h"
#include "tuning/predict.h"

namespace shoal::tools {

/// The first batch of the scenario's prompt, then its first tokens of generation (three at most), as events with the
/// names of devices as rows and a row "host" for what a run costs its caller. Throws what predict() throws.
std::vector<TraceEvent> simulated_trace(const tuning::Scenario& scenario, const tuning::Candidate& candidate);

}  // namespace shoal::tools
