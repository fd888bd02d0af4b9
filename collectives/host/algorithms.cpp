#include "collectives/host/algorithms.h"

#include <array>

namespace shoal::collectives::host {
namespace {

constexpr std::array kAlgorithms = std::to_array<Algorithm>({
    all_reduce,      // kAllReduce
    all_gather,      // kAllGather
    reduce_scatter,  // kReduceScatter
    all_to_all,      // kAllToAll
    broadcast,       // kBroadcast
    barrier,         // kBarrier
});
static_assert(kAlgorithms.size() == static_cast<size_t>(Collective::kCount));

}  // namespace

Algorithm algorithm_for(Collective kind) {
  return kAlgorithms[static_cast<size_t>(kind)];
}

void barrier(Exchange& x) {
  x.meet();
}

}  // namespace shoal::collectives::host
