// The collectives of the host communicator, one file each, written against one rank's Exchange: every rank runs the
// same function on its own thread. Steps and bytes of each: docs/collectives.md.
#pragma once

#include "collectives/host/exchange.h"

namespace shoal::collectives::host {

using Algorithm = void (*)(Exchange&);

/// The table of all kinds.
Algorithm algorithm_for(Collective kind);

#define SHOAL_COLLECTIVE(id, name, ...) void name(Exchange& x);
#include "graph/collectives.def"

/// The two forms of all_reduce; right for any count that fits (one-shot: fits a slot), chosen by size.
void all_reduce_one_shot(Exchange& x);
void all_reduce_two_shot(Exchange& x);

}  // namespace shoal::collectives::host
