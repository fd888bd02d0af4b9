// What passes between the processes of several hosts, measured.
#pragma once

#include <optional>
#include <span>
#include <vector>

#include "machine/machine.h"
#include "processes/process_group.h"

namespace shoal::machine {

/// Measures the first processes of each pair of hosts, and the first two processes of each host that has several, by
/// messages there and back. Pairs take turns. Collective; every process gets the same. Throws CommError.
std::vector<HostLink> measure_links(ProcessGroup& group);

/// The highest latency and the lowest bandwidth of links between hosts, or of links within hosts. nullopt: there are
/// none.
std::optional<Network> slowest(std::span<const HostLink> links, bool between_hosts);

}  // namespace shoal::machine
