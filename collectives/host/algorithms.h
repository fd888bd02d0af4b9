// The collectives of the host communicator. Each function takes one rank's Exchange. Every rank runs the function on
// its own thread. docs/collectives.md lists the steps and bytes of each function.
#pragma once

#include "collectives/host/exchange.h"

namespace shoal::collectives::host {

#define SHOAL_COLLECTIVE(id, name, ...) void name(Exchange& x);
#include "graph/collectives.def"

/// The functions, in the order of enum Collective.
inline constexpr void (*kAlgorithms[])(Exchange&) = {
#define SHOAL_COLLECTIVE(id, name, ...) name,
#include "graph/collectives.def"
};

}  // namespace shoal::collectives::host
