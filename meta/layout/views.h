// Views of sharded tensors: how a view lies, given how its source does, and which view of a rank's shard that is.
// Where a cut falls inside an element of the view there is none: the source must be redistributed first.
//
//   [32, 8] split 1 [6:{0} 2:{1}], its rows 4-7 (slice of axis 1): split 1 [2:{0} 2:{1}]; rank 0 takes rows 4-5 of its
//   6, rank 1 its two.
#pragma once

#include <optional>

#include "graph/tensor.h"
#include "meta/layout/layout.h"

namespace shoal::meta {

/// Of a reshape, slice or permute whose source lies as `source`; nullopt when that cannot be said or stored.
std::optional<Layout> view_layout(const Tensor& view, const Layout& source);

/// The parameters that make a rank's shard of the view (which lies as `result`) from its shard of the source. A reshape
/// needs that without gaps.
OpParams local_view_params(const Tensor& view, const Layout& source, const Layout& result, int rank);

}  // namespace shoal::meta
