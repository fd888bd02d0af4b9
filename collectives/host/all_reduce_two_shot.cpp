// Two-shot all_reduce for large messages, where the bytes are what costs: every rank sums one chunk of all ranks'
// data, read where it lies, and writes the result into all outputs at once. Only rank r ever touches chunk r
// between the two meetings, so it may work in place, and no rank reads a byte twice.
//
//   count 100 f32, 3 ranks: 7 cache lines of 16 elements -> chunks [0, 32), [32, 64), [64, 100)
#include <algorithm>

#include "collectives/host/algorithms.h"
#include "collectives/host/sum.h"

namespace shoal::collectives::host {
namespace {

/// First element of a rank's chunk. On a cache-line boundary, so that no two ranks write to one line.
int64_t chunk_begin(const Exchange& x, int rank) {
  const int64_t count = x.call().count;
  const int64_t per_line = static_cast<int64_t>(kCacheLine / x.bytes(1));
  const int64_t lines = (count + per_line - 1) / per_line;
  return std::min(lines * rank / x.size() * per_line, count);
}

}  // namespace

void all_reduce_two_shot(Exchange& x) {
  const int64_t begin = chunk_begin(x, x.rank());
  const int64_t end = chunk_begin(x, x.rank() + 1);
  x.meet();
  sum(x.dtype(), x.ins(), begin, end - begin, x.outs(), begin);
  x.meet();
}

}  // namespace shoal::collectives::host
