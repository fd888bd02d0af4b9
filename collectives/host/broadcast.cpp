// broadcast: every rank copies the root's data, from its staging slot (one meeting) or, when they do not fit there,
// from where they lie (two meetings).
#include "collectives/host/algorithms.h"

namespace shoal::collectives::host {

void broadcast(Exchange& x) {
  const int root = x.call().root;
  const size_t bytes = x.bytes(x.call().count);
  const bool staged = x.fits_slot(x.call().count);
  if (staged && x.rank() == root) copy_bytes(x.slot(root), x.in(), bytes);
  x.meet();
  const std::byte* const data = x.rank() == root ? x.in() : staged ? x.slot(root) : x.in_of(root);
  copy_bytes(x.out(), data, bytes);
  if (!staged) x.meet();
}

}  // namespace shoal::collectives::host
