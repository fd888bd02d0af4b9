// The collectives of the host communicator, one file each, written against one rank's Exchange: every rank runs the
// same function on its own thread. Steps and bytes of each: docs/collectives.md.
#pragma once

#include "collectives/host/exchange.h"

namespace shoal::collectives::host {

using Algorithm = void (*)(Exchange&);

/// The table of all kinds.
Algorithm algorithm_for(Collective kind);

void all_reduce(Exchange& x);
void all_gather(Exchange& x);
void reduce_scatter(Exchange& x);
void all_to_all(Exchange& x);
void broadcast(Exchange& x);
void barrier(Exchange& x);

/// The two forms of all_reduce; right for any count that fits (one-shot: fits a slot), chosen by size.
void all_reduce_one_shot(Exchange& x);
void all_reduce_two_shot(Exchange& x);

}  // namespace shoal::collectives::host
