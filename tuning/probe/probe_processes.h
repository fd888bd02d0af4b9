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

/// Measures round trips between processes. For each pair of hosts, the message travels between the first processes of
/// the two hosts. For each host with several processes, the message travels between the first two processes of the
/// host. The pairs of processes are measured one after another. Collective; all processes get the same result. Throws
/// CommError.
std::vector<HostLink> measure_links(ProcessGroup& group);

/// Returns the highest latency and the lowest bandwidth of the links between hosts (`between_hosts`), or of the links
/// within hosts. Returns nullopt if `links` does not contain such a link.
std::optional<Network> slowest(std::span<const HostLink> links, bool between_hosts);

/// Measures the devices of several processes. Each process measures its own devices with probe(). The processes of a
/// host do so one after another. Then all processes together measure collectives and messages between processes. In the
/// result, the name of a device is the same for all processes, and each process has its own domains. Collective; all
/// processes get the same result. Throws CommError and the exceptions of probe().
MachineModel probe_everywhere(ProcessGroup& group, std::span<Device* const> devices, const ProbeOptions& options);

}  // namespace shoal::probe
