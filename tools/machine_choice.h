// Which machine predictions are made for: one that a file describes, or this one as it was probed (meta/probe.h).
#pragma once

#include <optional>
#include <span>
#include <string>

#include "devices/device.h"
#include "meta/machine.h"
#include "models/model.h"

namespace shoal::tools {

struct KnownMachine {
  meta::MachineModel model;
  std::string origin;  ///< "machine.json", "measured 2026-11-22 07:00:00 UTC"
};

/// What is asked of a machine: these devices, with so many threads each (0: their default), and the weights of a model.
struct MachineQuestion {
  const models::Model& model;
  std::span<Device* const> devices;
  int threads = 0;
  std::string file = {};  ///< a description to take instead of a probe
};

/// The description in the file; where none is named, what is kept of a probe. nullopt where there is none. Throws
/// InvalidArgument for a file that is no description.
std::optional<KnownMachine> find_machine(const MachineQuestion& question);
/// The same; where there is none, the devices are probed quickly and the figures kept, which a line on stderr says.
KnownMachine require_machine(const MachineQuestion& question);
/// The command that makes predictions possible: "shoal probe --devices CPU0,CPU1 -t 2".
std::string probe_command(const MachineQuestion& question);

}  // namespace shoal::tools
