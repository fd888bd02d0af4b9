// Which cores each of several processes of one computer takes where all may use the same ones: whole cores, as two
// processes on the hardware threads of one core would slow each other down, and those of one NUMA node where they can.
//
//   2 nodes of 4 cores with 2 hardware threads each, 2 processes: each has the 8 hardware threads of a node
#pragma once

#include <cstddef>
#include <span>
#include <vector>

namespace shoal {

struct HardwareThread {
  int number = 0;  ///< of the operating system
  int core = 0;    ///< the lowest number of a hardware thread of the same core
  int node = 0;    ///< NUMA node
};

/// The hardware threads that the calling thread may use, in order of their numbers.
std::vector<HardwareThread> usable_threads();

/// Numbers of the hardware threads of each of `processes`: consecutive cores, nodes in order, as many for each as for
/// the others, or a quarter less or more where a share begins with a node then. With fewer cores than processes
/// hardware threads are divided. Empty: there are fewer of these, too. Pure.
std::vector<std::vector<int>> divide_threads(std::vector<HardwareThread> threads, size_t processes);

}  // namespace shoal
