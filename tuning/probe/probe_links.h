// The part of a probe that measures several devices together: what they take from each other, and how they talk. Used
// by tuning/probe/probe.cpp.
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

/// Devices that share memory and cores, as far as they say so themselves: those of one node, or one GPU. Names of the
/// domains, by device.
std::vector<std::string> domain_names(std::span<Device* const> devices);

/// Sets of devices (indices, ascending) that are measured: all sets of up to four devices. Of more devices the first 2,
/// 4, 8, ... and all of each kind (machine/sets.h); with several kinds also 1, 2, 4, ... and all of each together.
std::vector<std::vector<int>> member_sets(const MachineModel& machine);

/// Slowdown when all loads run together, relative to each running alone: the least times of several tries, in which the
/// two are measured alternately.
double slowdown(std::span<Load> loads, std::span<Backend* const> backends, double budget);

/// Bytes of the largest message that is measured.
inline size_t largest_message(bool quick) {
  return (quick ? 4 : 16) * kMega;
}
/// all_reduce on backends made for it, of messages up to `largest` bytes, by the implementation `comm` (ProbeOptions).
/// `group`: the processes that the backends belong to. Collective then; the figures of process 0 count.
CollectiveTable measure_collectives(std::span<Backend* const> backends, double budget, size_t largest,
                                    const std::string& comm, ProcessGroup* group = nullptr);

/// Between which devices (indices) copies are measured: two GPUs, which is where layers lie if there are several, and
/// the host and a GPU, for what stays in the host's memory; else the first two devices.
std::vector<std::pair<size_t, size_t>> copy_pairs(const MachineModel& machine);

struct CopyCost {
  double latency = 0;    ///< seconds
  double bandwidth = 0;  ///< bytes/s
};
/// Passing a value on.
CopyCost measure_copies(Backend& from, Backend& to, double budget);

}  // namespace shoal::probe
