// Seating: the process and the node of each rank of a mesh. The members own_* differ between processes. All other
// members are equal in every process. A node here is a computer with ranks. The first rank of a node is its leader:
// only the leader exchanges messages with other nodes. The seat of a rank is its index among the ranks of its node.
//
//   ranks 0:CPU0 0:CPU1 1:CPU0 2:CPU0, processes 0 and 1 on one computer, 2 on another:
//   node 0 has ranks 0 1 2 and leader 0, node 1 has rank 3; rank 2 (in process 1) has seat 2 of node 0
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

  std::vector<int> process, node, seat;   ///< one element per rank
  std::vector<std::vector<int>> members;  ///< the ranks of each node
  std::vector<std::string> names;         ///< one name per rank for messages, such as "1:CPU0 on b"
  int own_process = 0;
  int own_node = -1;  ///< -1 if this process's computer has no ranks
};

/// Whether the processes of this node have more threads than cores. If so, waiting ranks must not spin. `own_ranks`:
/// number of ranks of this process. All processes must call this function.
bool is_crowded(ProcessGroup& group, int own_ranks);

}  // namespace shoal::collectives::mpi
