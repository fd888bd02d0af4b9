// all_reduce: the choice between its two forms.
#include "collectives/host/algorithms.h"

namespace shoal::collectives::host {

void all_reduce(Exchange& x) {
  if (x.fits_slot(x.call().count)) {
    all_reduce_one_shot(x);
  } else {
    all_reduce_two_shot(x);
  }
}

}  // namespace shoal::collectives::host
