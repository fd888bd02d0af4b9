// A probe of devices that belong to several processes.
#pragma once

#include "machine/probe.h"
#include "processes/process_group.h"

namespace shoal::machine {

/// As probe(): each process measures its own devices, those of one computer one after the other, and all together their
/// collectives and what passes between them. Devices have the names that all processes use; each process has domains of
/// its own. Collective; every process gets the same. Throws what probe() throws, and CommError.
MachineModel probe_everywhere(ProcessGroup& group, std::span<Device* const> devices, const ProbeOptions& options);

/// Time of a message from one process to another and back, by halves.
struct Passage {
  double latency = 0;    ///< seconds
  double bandwidth = 0;  ///< bytes/s
};
/// Between process 0 and the one to which that takes longest. Collective.
Passage measure_passages(ProcessGroup& group);

}  // namespace shoal::machine
