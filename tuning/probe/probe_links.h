// Measures several devices together: how much they slow each other down, and how fast they communicate. Used by
// tuning/probe/probe.cpp.
#pragma once

#include <span>
#include <string>
#include <utility>
#include <vector>

#include "machine/machine.h"
#include "processes/process_group.h"
#include "tuning/probe/probe_device.h"

namespace shoal::probe {

using machine::CollectiveTable;
using machine::MachineModel;

/// The name of each device's domain. Devices of one NUMA node or one GPU share a domain with its memory and cores.
std::vector<std::string> domain_names(std::span<Device* const> devices);

/// Sets of devices (indices, ascending) to measure. Up to four devices: all sets. More devices: the first 2, 4, 8, ...
/// and all devices of each kind (machine/sets.h). With several kinds, also sets with the first 1, 2, 4, ... or all
/// devices of every kind.
std::vector<std::vector<int>> member_sets(const MachineModel& machine);

/// Slowdown of loads that run together, relative to each load alone. Both are measured alternately several times, and
/// the smallest times count.
double slowdown(std::span<Load> loads, std::span<Backend* const> backends, double budget);

/// Bytes of the largest message that is measured.
inline size_t largest_message(bool quick) {
  return (quick ? 4 : 16) * kMega;
}
/// Measures all_reduce with messages up to `largest` bytes and the implementation `comm` (see ProbeOptions). The
/// backends must not be used for other work. With a `group` of processes, which own the backends, the call is
/// collective, and only the figures that process 0 returns are valid.
CollectiveTable measure_collectives(std::span<Backend* const> backends, double budget, size_t largest,
                                    const std::string& comm, ProcessGroup* group = nullptr);

/// Pairs of devices (indices) between which copies are measured. Two GPUs, because layers may be divided among GPUs.
/// The host and a GPU, because weights may stay on the host. Without GPUs: the first two devices.
std::vector<std::pair<size_t, size_t>> copy_pairs(const MachineModel& machine);

struct CopyCost {
  double latency = 0;    ///< seconds
  double bandwidth = 0;  ///< bytes/s
};
/// Measures copies of tensors between two backends.
CopyCost measure_copies(Backend& from, Backend& to, double budget);

}  // namespace shoal::probe
