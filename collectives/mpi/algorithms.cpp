#include "collectives/mpi/algorithms.h"

namespace shoal::collectives::mpi {
namespace {

constexpr Algorithm kTable[] = {
#define SHOAL_COLLECTIVE(id, name, ...) name,
#include "graph/collectives.def"
};

}  // namespace

Algorithm algorithm_for(Collective kind) {
  return kTable[static_cast<size_t>(kind)];
}

}  // namespace shoal::collectives::mpi
