// all_gather: every rank copies the others' parts, from their staging slots (one meeting) or, when a part does not
// fit there, from where they lie (two meetings).
#include <algorithm>

#include "collectives/host/algorithms.h"

namespace shoal::collectives::host {

void all_gather(Exchange& x) {
  const auto counts = x.call().counts;
  const int64_t own = counts[x.rank()];
  const bool staged = x.fits_slot(*std::max_element(counts.begin(), counts.end()));
  if (staged) copy_bytes(x.slot(x.rank()), x.in(), x.bytes(own));
  x.meet();
  int64_t offset = 0;
  for (int from = 0; from < x.size(); ++from) {
    // The own part comes straight from the input, which may lie in place.
    const std::byte* part = from == x.rank() ? x.in() : staged ? x.slot(from) : x.in_of(from);
    if (counts[from] > 0) copy_bytes(x.out() + x.bytes(offset), part, x.bytes(counts[from]));
    offset += counts[from];
  }
  if (!staged) x.meet();
}

}  // namespace shoal::collectives::host
