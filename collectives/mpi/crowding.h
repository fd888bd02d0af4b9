// Whether the ranks of a node may spin while they wait: where each thread of all its processes can have a core.
#pragma once

#include "processes/process_group.h"

namespace shoal::collectives::mpi {

/// True: the node of this process has more threads than cores, with `own_ranks` of this one. Collective.
bool is_crowded(ProcessGroup& group, int own_ranks);

}  // namespace shoal::collectives::mpi
