// A probe of devices that belong to several processes.
#pragma once

#include "processes/process_group.h"
#include "tuning/probe/probe.h"

namespace shoal::machine {

/// As probe(): each process measures its own devices, those of one computer one after the other, and all together their
/// collectives and what passes between them. Devices have the names that all processes use; each process has domains of
/// its own. Collective; every process gets the same. Throws what probe() throws, and CommError.
MachineModel probe_everywhere(ProcessGroup& group, std::span<Device* const> devices, const ProbeOptions& options);

}  // namespace shoal::machine
