// Divides the cores of one computer among its processes if all of them may use the same cores. Each process gets whole
// cores, because two processes on the hardware threads of one core would slow each other down. The cores of a process
// are adjacent, such as the cores of one NUMA node.
//
//   2 NUMA nodes, 4 cores per node, 2 hardware threads per core, 2 processes: each process gets one whole node
#pragma once

#include <cstddef>
#include <vector>

namespace shoal {

struct UsableCore {
  std::vector<int> threads;  ///< numbers of the core's hardware threads
  int node = 0;              ///< the core's NUMA node
  bool operator==(const UsableCore&) const = default;
};

/// The cores and hardware threads that the calling thread may use, ordered by NUMA node.
std::vector<UsableCore> usable_cores();

/// Returns the hardware threads of each of `processes` processes. Shares differ by at most one core, with one
/// exception: a share that would begin within a quarter of a share before or after the first core of a NUMA node begins
/// at that core. If there are fewer cores than processes, hardware threads are divided instead. If there are also fewer
/// hardware threads than processes, the result is empty. Pure.
///   nodes of 47 and 48 cores, 2 processes: the shares are 47 and 48 cores
std::vector<std::vector<int>> divide_threads(std::vector<UsableCore> cores, size_t processes);

}  // namespace shoal
