// attention's work: the tiles of a node, what its queries see, and the partial results that are merged.
//
// KV rows are cut in segments at fixed places; a segment gives a Partial per row (largest score m, sum l of
// exp(score - m), and the values weighted alike), and partials are merged in the order of segments. So one
// thread walking all segments and several threads with some each give the same bits. Example: scores 1, 3 | 2 in
// two segments: m = 3, l = e^-2 + 1 and m = 2, l = 1; merged: m = 3, l = e^-2 + 1 + e^-1.
#pragma once

#include <cstddef>
#include <cstdint>

#include "devices/cpu/kernels/attention.h"
#include "graph/tensor.h"

namespace shoal::cpu {

inline constexpr int64_t kLaneQueries = 8;    ///< queries that lie side by side in lanes
inline constexpr int64_t kSegmentRows = 512;  ///< KV rows per segment, more when there would be too many
inline constexpr int64_t kMaxSegments = 32;

/// Rounded up to a whole vector of any instruction set, which is a cache line.
int64_t padded(int64_t floats);

/// What is constant over a node, from its shapes and parameters.
struct AttentionShape {
  explicit AttentionShape(const Tensor& node);
  int64_t d, e, s, t, h, z;
  int64_t kv_heads, group;                 ///< group: query heads per KV head
  int64_t tile_heads, tile_queries;        ///< heads and queries of a tile
  int64_t head_tiles, query_tiles, tiles;  ///< tiles per KV head's group, per batch of queries, of the node
  int64_t segment_rows, segments;
  /// Most rows that a tile of this node has.
  int64_t tile_rows() const { return tile_heads * tile_queries; }
  bool lanes() const { return t >= kLaneQueries; }
  /// Floats of scratch that a Tile needs.
  size_t scratch_floats() const;
};

/// Rows [begin, end) of the KV axis.
struct KvRange {
  int64_t begin = 0, end = 0;
};
/// The KV rows that a query may see; nothing outside is read for it.
KvRange visible(const Tensor& node, int64_t query, int64_t batch);
/// The KV rows that any of the node's queries may see.
KvRange visible(const Tensor& node);

/// Running soft-max of one row. `values` are e weighted sums.
struct Partial {
  float top = 0;            ///< -infinity: no score but -infinity and NaN
  float sum = 0;            ///< at least 1, NaN when a score was NaN; 0: nothing seen yet
  float* values = nullptr;  ///< unset when nothing was seen
};
/// Takes `from` into `into`.
void merge(Partial& into, const Partial& from, int64_t e);
/// Writes the result row: values / sum with the head's sink, zeros when nothing was seen; and its lse, if it has one.
void finish(const Tensor& node, const Partial& partial, int64_t head, float* to);

/// The sources of a node; nullptr: it has none of that kind.
enum class AttentionSource { kQ, kK, kV, kPositions, kMask, kSinks };
const Tensor* source(const Tensor& node, AttentionSource which);

}  // namespace shoal::cpu
