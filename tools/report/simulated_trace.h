// The virtual timeline of `shoal simulate --trace`: what every device of a machine would do, and when.
#pragma once

#include <vector>

#include "devices/trace.h"
#include "tuning/choose/chooser.h"

namespace shoal::tools {

/// The first batch of the asked work's prompt, then its first tokens of generation (three at most), as events with the
/// names of devices as rows and a row "host" for the caller's part of a run. Throws what Chooser::judge() throws.
std::vector<TraceEvent> simulated_trace(tuning::Chooser& chooser, const tuning::Choice& choice);

}  // namespace shoal::tools
