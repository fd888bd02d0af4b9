// What passes between the processes of several hosts, measured.
#pragma once

#include <cstdint>
#include <map>
#include <optional>
#include <span>
#include <string>
#include <string_view>
#include <vector>

#include "machine/machine.h"
#include "processes/process_group.h"

namespace shoal::machine {

/// By half the time of messages there and back, of each pair of hosts between their first processes, of a host with
/// several between its first two. Pairs without a host in common are measured at the same time. Collective; every
/// process gets the same. Throws CommError.
std::vector<HostLink> measure_links(ProcessGroup& group);

/// The highest latency and the lowest bandwidth of links between hosts, or of those within hosts. nullopt: there are
/// none.
std::optional<Network> slowest(std::span<const HostLink> links, bool between_hosts);

/// Bytes that each network interface of this host has sent so far.
using SentBytes = std::map<std::string, uint64_t>;
/// The transmit counters of /proc/net/dev.
SentBytes parse_net_dev(std::string_view text);
/// Those of the kernel's interfaces and of RDMA ports, which it does not see. What cannot be read is left out.
SentBytes sent_bytes();
/// Names of those that a good part of `bytes` went through, "eth0,eth1".
std::string busy_interfaces(const SentBytes& before, const SentBytes& after, uint64_t bytes);

}  // namespace shoal::machine
