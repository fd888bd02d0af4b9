// Seating: the process and the node of each rank of a mesh. It is equal in every process, except for members called
// own_*. A node here is a computer with ranks. Its first rank leads: only the leader exchanges messages with other
// nodes.
//
//   ranks 0:CPU0 0:CPU1 1:CPU0 2:CPU0, processes 0 and 1 on one computer, 2 on another:
//   node 0 has the ranks 0 1 2 and is led by 0, node 1 has the rank 3; process 1 has seat 2 of node 0
#pragma once

#include <span>
#include <string>
#include <vector>

#include "processes/process_group.h"
#include "processes/remote_device.h"

namespace shoal::collectives::mpi {

struct Seating {
  Seating(std::span<Device* const> devices, const ProcessGroup& group);

  int ranks() const { return static_cast<int>(process.size()); }
  int nodes() const { return static_cast<int>(members.size()); }
  const std::vector<int>& on(int of) const { return members[static_cast<size_t>(of)]; }
  int leader(int of) const { return on(of).front(); }
  int process_of(int rank) const { return process[static_cast<size_t>(rank)]; }
  int node_of(int rank) const { return node[static_cast<size_t>(rank)]; }
  int seat_of(int rank) const { return seat[static_cast<size_t>(rank)]; }
  bool is_own(int rank) const { return process_of(rank) == own_process; }

  std::vector<int> process, node, seat;   ///< per rank
  std::vector<std::vector<int>> members;  ///< per node: its ranks
  std::vector<std::string> names;         ///< per rank, for messages: "1:CPU0 on b"
  int own_process = 0;
  int own_node = -1;  ///< -1 if this process's computer has no ranks
};

/// Whether this process's node has more threads than cores, so that ranks must not spin while they wait. `own_ranks`:
/// number of ranks of this process. Collective.
bool is_crowded(ProcessGroup& group, int own_ranks);

}  // namespace shoal::collectives::mpi
