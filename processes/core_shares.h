// Divides the cores of one computer among its processes if all these processes may use the same cores. Each process
// gets whole cores, because two processes on the hardware threads of one core would slow each other down. The cores of
// a process are adjacent, such as the cores of one NUMA node. Example:
//
//   2 NUMA nodes, 4 cores per node, 2 hardware threads per core, 2 processes: each process gets one whole node
#pragma once

#include <cstddef>
#include <vector>

namespace shoal {

struct UsableCore {
  std::vector<int> threads;  ///< operating-system numbers of the core's hardware threads
  int node = 0;              ///< NUMA node of the core
  bool operator==(const UsableCore&) const = default;
};

/// Returns the cores and hardware threads that the calling thread may use, ordered by NUMA node.
std::vector<UsableCore> usable_cores();

/// Returns the hardware threads of each of `processes` processes. With one exception, the numbers of cores per process
/// differ by at most one. The exception: if a NUMA node begins near the border between two processes, the border moves
/// to the first core of this node. Such a border moves by at most a quarter of the cores of a process. If there are
/// fewer cores than processes, hardware threads are divided instead. If there are fewer hardware threads than
/// processes, the result is empty. This function is pure.
///   nodes of 47 and 48 cores, 2 processes: the processes get 47 and 48 cores
std::vector<std::vector<int>> divide_threads(std::vector<UsableCore> cores, size_t processes);

}  // namespace shoal
