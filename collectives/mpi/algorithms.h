// The collectives of the mpi communicator, written against one rank's Round: every rank runs the same function on
// its own thread. Steps and bytes of each: docs/collectives.md.
#pragma once

#include "collectives/mpi/round.h"

namespace shoal::collectives::mpi {

#define SHOAL_COLLECTIVE(id, name, ...) void name(Round& x);
#include "graph/collectives.def"

/// By kind.
inline constexpr void (*kAlgorithms[])(Round&) = {
#define SHOAL_COLLECTIVE(id, name, ...) name,
#include "graph/collectives.def"
};

}  // namespace shoal::collectives::mpi
