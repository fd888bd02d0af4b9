// What would make a model fit that does not (tuning/fit.h), in words and with the flags for it. Pure functions.
#pragma once

#include <string>

#include "tuning/fit.h"

namespace shoal::tools {

/// One sentence: "CPU0 needs 9.1 MiB and has 8.0 MiB free; what would fit: a context of 256 (-c 256); ...".
std::string remedies_text(const tuning::Remedies& remedies);

/// "CPU0 needs 9.1 MiB and has 8.0 MiB free": what is wrong.
std::string problem_text(const tuning::Remedies& remedies);

/// What a command has to say for a context beside what it says already: "-c 22432 -ts 6,11 -sm layer".
std::string context_options(const tuning::ContextThatFits& found);
/// The same without the context and the type of the cache: " -ts 6,11 -sm layer", or nothing.
std::string split_options(const tuning::ContextThatFits& found);

}  // namespace shoal::tools
