// Which machine predictions are made for: one that a file describes, or this one as it was probed.
#pragma once

#include <optional>
#include <span>
#include <string>

#include "devices/device.h"
#include "meta/machine.h"

namespace shoal::tools {

struct KnownMachine {
  meta::MachineModel model;
  std::string origin;  ///< "machine.json", "the probe in /home/..."
};

/// The description in `file`; where that is empty, what was kept of a probe of these devices with so many threads each
/// (0: their default). nullopt where there is none. Throws InvalidArgument for a file that is no description.
std::optional<KnownMachine> find_machine(const std::string& file, std::span<Device* const> devices, int threads);
/// The same; where there is none, these devices are probed quickly, which a line on stderr says.
KnownMachine require_machine(const std::string& file, std::span<Device* const> devices, int threads);

}  // namespace shoal::tools
