// Choices, verdicts and remedies in words, with the flags for them. Functions that take a chooser may search and plan.
#pragma once

#include <string>

#include "tuning/choose/compare.h"

namespace shoal::tools {

/// Flags that turn one choice into another, but for the context: " -dev CPU0,CPU1 -ts 6,11 -sm layer"; "" if nothing
/// changes.
std::string change_options(const tuning::Choice& from, const tuning::Choice& to);

/// Of devices that need more than they have: "CPU0 needs 9.1 MiB and has 8.0 MiB free".
std::string problem_text(std::span<const models::DeviceUse> uses);
/// One sentence: "CPU0 needs 9.1 MiB and has 8.0 MiB free; what would fit: a context of 256 (-c 256); ...".
std::string remedies_text(const tuning::Remedies& remedies);
/// Flags for a choice with the largest context: "-c 22432 -ts 6,11 -sm layer", "-c 512 -ctk q8_0 -ctv q8_0".
std::string context_options(const tuning::Remedies& remedies, const tuning::Choice& choice);

/// "tensor split 3,1 for CPU0,CPU1: predicted 22.1 tokens/s, even 18.0 tokens/s".
std::string shares_text(tuning::Chooser& chooser, const tuning::Chosen& chosen);
/// "the experts of 49 of 58 layers stay on the host, as if by -ncmoe 49: predicted 8.1 tokens/s, with -ngl 13 2.2".
std::string host_text(const models::Model& model, const tuning::Asked& asked, const tuning::Chosen& chosen);
/// "context 22432 instead of 32768: ...".
std::string context_text(const tuning::Asked& asked, const tuning::Chosen& chosen);
/// Throws DeviceError if the prompt is the reason that a context does not fit, and a shorter prompt would.
void require_room_for_prompt(tuning::Chooser& chooser, const tuning::Choice& choice);
/// Why not even the least context fits, with remedies.
[[noreturn]] void fail_to_fit(tuning::Chooser& chooser, const tuning::Choice& choice);

}  // namespace shoal::tools
