// Which cores each of several processes of one computer takes where all may use the same ones: whole cores, as two
// processes on the hardware threads of one core would slow each other down, and neighbours, as those of one NUMA node
// are.
//
//   2 nodes of 4 cores with 2 hardware threads each, 2 processes: each has the 8 hardware threads of a node
#pragma once

#include <cstddef>
#include <vector>

namespace shoal {

struct UsableCore {
  std::vector<int> threads;  ///< numbers of its hardware threads
  int node = 0;              ///< its NUMA node
  bool operator==(const UsableCore&) const = default;
};

/// The cores and hardware threads that the calling thread may use, NUMA node by NUMA node.
std::vector<UsableCore> usable_cores();

/// The hardware threads of each of `processes`: as many cores as the others have, or one more, but a share that would
/// begin near a NUMA node (within a quarter of a share) begins with it. With fewer cores than processes hardware
/// threads are divided. Empty: there are fewer of these, too. Pure.
///   nodes of 47 and 48 cores, 2 processes: 47 and 48
std::vector<std::vector<int>> divide_threads(std::vector<UsableCore> cores, size_t processes);

}  // namespace shoal
