#include "collectives/host/algorithms.h"

namespace shoal::collectives::host {
namespace {

constexpr Algorithm kAlgorithms[] = {
#define SHOAL_COLLECTIVE(id, name, ...) name,
#include "graph/collectives.def"
};

}  // namespace

Algorithm algorithm_for(Collective kind) {
  return kAlgorithms[static_cast<size_t>(kind)];
}

}  // namespace shoal::collectives::host
