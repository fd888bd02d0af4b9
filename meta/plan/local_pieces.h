// Pieces of a local tensor along one axis: what redistribution cuts out, flattens and joins with slice, reshape and
// concat nodes. Pieces are in the coordinates of the local axis.
//
//   held 5:{0} 3:{1} 1:{0}, wanted 2:{1} 4:{0} 3:{1}: device 0 wants global 2-5 and holds 0-4 and 8, so local_pieces
//   gives {begin 2, length 3}; global 5 has to come from device 1
#pragma once

#include <vector>

#include "graph/ops/ops.h"
#include "meta/layout/partition.h"

namespace shoal::meta {

/// A stretch of a local axis.
struct Piece {
  int64_t begin = 0;
  int64_t length = 0;
};
using Pieces = std::vector<Piece>;

/// Where a device's runs lie in the whole axis.
Pieces global_pieces(const Partition& partition, int device);
/// Where the elements that `device` owns under `wanted` lie in its shard under `held`, for those it holds.
Pieces local_pieces(const Partition& held, const Partition& wanted, int device);

/// The pieces of x along an axis, one after the other; neighbours are taken together, all of x is x itself.
Tensor* take(Graph& g, Tensor* x, int axis, const Pieces& pieces);
/// Parts one after the other. Parts of length 0 are left out, unless all are empty: then the shape is all that counts.
Tensor* join(Graph& g, std::vector<Tensor*> parts, int axis);
/// x itself where it is contiguous, else a copy.
Tensor* as_contiguous(Graph& g, Tensor* x);
/// x as one row.
Tensor* flatten(Graph& g, Tensor* x);

}  // namespace shoal::meta
