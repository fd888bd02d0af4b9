#include "graph/quants/grids.h"

namespace shoal::quants {

#define SHOAL_DEFINE_GRID(id, Word, count, levels) \
  constexpr Grid<Word, count> kGrid##id = grids::expand<Word, count>(grids::k##id##Set, grids::levels)
SHOAL_FOR_GRIDS(SHOAL_DEFINE_GRID);

}  // namespace shoal::quants
