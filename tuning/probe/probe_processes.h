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

/// Measures round trips between processes: one pair for every two hosts (their first processes), and one pair within
/// each host (its first two processes). The pairs are measured one after another. Collective; all processes get the
/// same result. Throws CommError.
std::vector<HostLink> measure_links(ProcessGroup& group);

/// The highest latency and the lowest bandwidth of all links between hosts, or of all links within hosts. nullopt if
/// there are no such links.
std::optional<Network> slowest(std::span<const HostLink> links, bool between_hosts);

/// Like probe(), for several processes. Each process measures its own devices; processes of one host do so one after
/// another. Then all processes together measure collectives and messages between processes. Devices have the names that
/// all processes use, and each process has its own domains. Collective; all processes get the same result. Throws the
/// exceptions of probe(), and CommError.
MachineModel probe_everywhere(ProcessGroup& group, std::span<Device* const> devices, const ProbeOptions& options);

}  // namespace shoal::probe
