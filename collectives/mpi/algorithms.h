// The collectives of the mpi communicator, written against one rank's Round: every rank runs the same function on its
// own thread. Steps and bytes of each: docs/collectives.md.
#pragma once

#include "collectives/mpi/round.h"

namespace shoal::collectives::mpi {

using Algorithm = void (*)(Round&);

/// The table of all kinds.
Algorithm algorithm_for(Collective kind);

#define SHOAL_COLLECTIVE(id, name, ...) void name(Round& x);
#include "graph/collectives.def"

}  // namespace shoal::collectives::mpi
