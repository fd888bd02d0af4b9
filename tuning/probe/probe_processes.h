// Probes devices that belong to several processes.
#pragma once

#include <optional>
#include <span>
#include <vector>

#include "processes/process_group.h"
#include "tuning/probe/probe.h"

namespace shoal::probe {

using machine::CollectiveTable;
using machine::Domain;
using machine::HostLink;
using machine::Network;

/// Measures round trips between two processes: the first processes of each pair of hosts, and the first two processes
/// of each host. The pairs of processes are measured one after another. Collective; all processes get the same result.
/// Throws CommError.
std::vector<HostLink> measure_links(ProcessGroup& group);

/// The highest latency and the lowest bandwidth among the links between hosts, or among the links within hosts. nullopt
/// if there are no such links.
std::optional<Network> slowest(std::span<const HostLink> links, bool between_hosts);

/// Measures the devices of several processes. Each process measures its own devices with probe(). Processes of one host
/// measure one after another. Then all processes together measure collectives and messages between processes. In the
/// result, devices have the names that all processes use, and each process has its own domains. Collective; all
/// processes get the same result. Throws the exceptions of probe(), and CommError.
MachineModel probe_everywhere(ProcessGroup& group, std::span<Device* const> devices, const ProbeOptions& options);

}  // namespace shoal::probe
