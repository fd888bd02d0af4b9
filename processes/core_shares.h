// Which cores each of several processes of one computer takes where all may use the same ones: whole cores, as two
// processes on the hardware threads of one core would slow each other down, and neighbours, as those of one NUMA node
// are.
//
//   2 nodes of 4 cores with 2 hardware threads each, 2 processes: each has the 8 hardware threads of a node
#pragma once

#include <cstddef>
#include <vector>

namespace shoal {

/// Numbers of the hardware threads of each core, those that the calling thread may use, NUMA node by NUMA node.
std::vector<std::vector<int>> usable_threads();

/// The hardware threads of each of `processes`: as many cores as the others have, or one more. With fewer cores than
/// processes hardware threads are divided. Empty: there are fewer of these, too. Pure.
std::vector<std::vector<int>> divide_threads(std::vector<std::vector<int>> cores, size_t processes);

}  // namespace shoal
