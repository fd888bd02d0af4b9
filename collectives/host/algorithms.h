// The collectives of the host communicator, written against one rank's Exchange: every rank runs the same function on
// its own thread. Steps and bytes of each: docs/collectives.md.
#pragma once

#include "collectives/host/exchange.h"

namespace shoal::collectives::host {

#define SHOAL_COLLECTIVE(id, name, ...) void name(Exchange& x);
#include "graph/collectives.def"

/// By kind.
inline constexpr void (*kAlgorithms[])(Exchange&) = {
#define SHOAL_COLLECTIVE(id, name, ...) name,
#include "graph/collectives.def"
};

}  // namespace shoal::collectives::host
