// A probe of devices that belong to several processes.
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

/// Measures the first processes of each pair of hosts, and the first two processes of each host that has several, by
/// messages there and back. Pairs take turns. Collective; every process gets the same. Throws CommError.
std::vector<HostLink> measure_links(ProcessGroup& group);

/// The highest latency and the lowest bandwidth of links between hosts, or of links within hosts. nullopt: there are
/// none.
std::optional<Network> slowest(std::span<const HostLink> links, bool between_hosts);

/// As probe(): each process measures its own devices, those of one computer one after the other, and all together their
/// collectives and what passes between them. Devices have the names that all processes use; each process has domains of
/// its own. Collective; every process gets the same. Throws what probe() throws, and CommError.
MachineModel probe_everywhere(ProcessGroup& group, std::span<Device* const> devices, const ProbeOptions& options);

}  // namespace shoal::probe
