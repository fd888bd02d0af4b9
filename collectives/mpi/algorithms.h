// The collectives of the mpi communicator. Each function takes one rank's Round. Every rank runs the function on its
// own thread. docs/collectives.md lists the steps and bytes of each function.
#pragma once

#include "collectives/mpi/round.h"

namespace shoal::collectives::mpi {

#define SHOAL_COLLECTIVE(id, name, ...) void name(Round& x);
#include "graph/collectives.def"

/// The functions, in the order of enum Collective.
inline constexpr void (*kAlgorithms[])(Round&) = {
#define SHOAL_COLLECTIVE(id, name, ...) name,
#include "graph/collectives.def"
};

}  // namespace shoal::collectives::mpi
