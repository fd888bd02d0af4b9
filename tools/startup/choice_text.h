// Describes choices, verdicts and remedies as text, with the flags that select them. Functions with a Chooser parameter
// may run searches and make plans.
#pragma once

#include <string>

#include "tuning/choose/compare.h"

namespace shoal::tools {

/// Flags that turn the choice `from` into the choice `to`, without the flag for the context: " -dev CPU0,CPU1 -ts 6,11
/// -sm layer". Returns "" if nothing changes.
std::string change_options(const tuning::Choice& from, const tuning::Choice& to);

/// Lists the devices that need more memory than is free: "CPU0 needs 9.1 MiB and has 8.0 MiB free".
std::string problem_text(std::span<const models::DeviceUse> uses);
/// One sentence with the problem and its remedies: "CPU0 needs 9.1 MiB and has 8.0 MiB free; possible remedies: a
/// context of 256 (-c 256); ...".
std::string remedies_text(const tuning::Remedies& remedies);
/// Flags for `choice` with the largest context that fits: "-c 22432 -ts 6,11 -sm layer", "-c 512 -ctk q8_0 -ctv q8_0".
std::string context_options(const tuning::Remedies& remedies, const tuning::Choice& choice);

/// The chosen shares: "tensor split 3,1 for CPU0,CPU1: predicted 22.1 tokens/s; even shares: 18.0 tokens/s".
std::string shares_text(tuning::Chooser& chooser, const tuning::Chosen& chosen);
/// The part of the model that the chooser put on the host: "the host keeps the experts of 49 of 58 layers, as with
/// -ncmoe 49: predicted 8.1 tokens/s, with -ngl 13: 2.2 tokens/s".
std::string host_text(const models::Model& model, const tuning::Asked& asked, const tuning::Chosen& chosen);
/// The chosen context and the reason: "context 22432 instead of 32768: ...".
std::string context_text(const tuning::Asked& asked, const tuning::Chosen& chosen);
/// Throws DeviceError if the prompt is too long for any context that fits, but a shorter prompt would fit.
void require_room_for_prompt(tuning::Chooser& chooser, const tuning::Choice& choice);
/// Throws DeviceError with the reason that not even the smallest context fits, and with remedies.
[[noreturn]] void fail_to_fit(tuning::Chooser& chooser, const tuning::Choice& choice);

}  // namespace shoal::tools
