// Measures several devices together: how much they slow each other down, and how fast they communicate.
// tuning/probe/probe.cpp uses these functions.
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

/// The domain name of each device. Devices of one NUMA node or of one GPU belong to one domain, because these devices
/// share memory and cores.
std::vector<std::string> domain_names(std::span<Device* const> devices);

/// Sets of devices to measure, as ascending indices:
///
/// - up to four devices: all sets
/// - more devices: for each kind (machine/sets.h), the first 2, 4, 8, ... devices and all devices
/// - several kinds: also the sets with the first 1, 2, 4, ... devices of every kind, and the set of all devices
std::vector<std::vector<int>> member_sets(const MachineModel& machine);

/// Factor by which loads slow down if they run together instead of alone. The function alternately measures each load
/// alone and all loads together, several times. The factor is the smallest time together divided by the smallest time
/// alone. In each repetition, the time alone is the time of the slowest load.
double slowdown(std::span<Load> loads, std::span<Backend* const> backends, double budget);

/// Size in bytes of the largest measured message.
inline size_t largest_message(bool quick) {
  return (quick ? 4 : 16) * kMega;
}
/// Measures all_reduce with the implementation `comm` (see ProbeOptions), with messages up to `largest` bytes. No other
/// work may use the backends at the same time. If several processes own the backends, `group` contains these processes.
/// The call is then collective, and only the measurements in process 0 are valid.
CollectiveTable measure_collectives(std::span<Backend* const> backends, double budget, size_t largest,
                                    const std::string& comm, ProcessGroup* group = nullptr);

/// Pairs of device indices for the measurement of copies:
///
/// - two GPUs, because layers may be divided among GPUs
/// - the host and a GPU, because weights may stay on the host
/// - the first two devices if there are no GPUs
std::vector<std::pair<size_t, size_t>> copy_pairs(const MachineModel& machine);

struct CopyCost {
  double latency = 0;    ///< seconds
  double bandwidth = 0;  ///< bytes/s
};
/// Measures copies of tensors between two backends.
CopyCost measure_copies(Backend& from, Backend& to, double budget);

}  // namespace shoal::probe
