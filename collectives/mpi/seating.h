// Seating: which rank of a mesh is in which process and on which node. The same in every process, but for what `own`
// says. A node here is a computer with ranks; its first rank leads: it alone talks to the other nodes.
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

  std::vector<int> process, node, seat;   ///< of each rank
  std::vector<std::vector<int>> members;  ///< ranks of each node, by their numbers
  std::vector<std::string> names;         ///< of each rank, for messages: "1:CPU0 on b"
  int own_process = 0;
  int own_node = -1;  ///< -1: no rank lives on the computer of this process
};

/// Whether the node of this process has more threads than cores, with `own_ranks` of this process: then its ranks may
/// not spin while they wait. Collective.
bool is_crowded(ProcessGroup& group, int own_ranks);

}  // namespace shoal::collectives::mpi
