// Describes the work of an attention node: its tiles, the KV rows that its queries see, and the partial results that
// are merged.
//
// KV rows are cut into segments at fixed positions. For each row of a tile, a segment produces a Partial: the largest
// score m, the sum l of exp(score - m), and the sum of the values weighted by exp(score - m). Partials are merged in
// the order of segments. So the result has the same bits whether one thread or several threads process the segments.
// Example: one segment has the scores 1 and 3, so m = 3 and l = e^-2 + 1. The next segment has the score 2, so m = 2
// and l = 1. The merged result has m = 3 and l = e^-2 + 1 + e^-1.
#pragma once

#include <cstddef>
#include <cstdint>

#include "devices/cpu/kernels/attention.h"
#include "graph/tensor.h"

namespace shoal::cpu {

inline constexpr int64_t kLaneQueries = 8;    ///< minimum number of queries for the lanes form (kernels/attention.h)
inline constexpr int64_t kSegmentRows = 512;  ///< minimum number of KV rows per segment; segments are longer if there
                                              ///< would otherwise be more than kMaxSegments segments
inline constexpr int64_t kMaxSegments = 32;

/// Returns `floats` rounded up to a multiple of kMaxLanes. The result fills whole vectors of any instruction set and
/// whole cache lines.
int64_t padded(int64_t floats);

/// Constants of a node, computed from its shapes and parameters.
struct AttentionShape {
  explicit AttentionShape(const Tensor& node);
  int64_t d, e, s, t, h, z;
  int64_t kv_heads, group;                 ///< number of KV heads; number of query heads per KV head
  int64_t tile_heads, tile_queries;        ///< maximum number of heads and of queries per tile
  int64_t head_tiles, query_tiles, tiles;  ///< number of tiles along the heads of one KV head, along the queries of one
                                           ///< batch, and in the whole node
  int64_t segment_rows, segments;
  /// Maximum number of rows in a tile of this node.
  int64_t tile_rows() const { return tile_heads * tile_queries; }
  bool lanes() const { return t >= kLaneQueries; }
  /// Number of scratch floats that a Tile needs.
  size_t scratch_floats() const;
};

/// Rows [begin, end) of the KV axis.
struct KvRange {
  int64_t begin = 0, end = 0;
};
/// Returns the KV rows that a query may see. No other KV row changes the result of this query.
KvRange visible(const Tensor& node, int64_t query, int64_t batch);
/// Returns the smallest range that contains all KV rows that at least one query of the node may see.
KvRange visible(const Tensor& node);

/// The running soft-max of one row. `values` points to AttentionShape::e weighted sums.
struct Partial {
  float top = 0;            ///< -infinity if every score so far is -infinity or NaN
  float sum = 0;            ///< 0 before the first visible score; later at least 1, or NaN if a score was NaN
  float* values = nullptr;  ///< uninitialised while `sum` is 0
};
/// Merges `from` into `into`.
void merge(Partial& into, const Partial& from, int64_t e);
/// Writes values / sum to the result row. The sum includes the head's sink. If no score was visible, the row is zeros.
/// Also writes lse (the log-sum-exp) if the node has this result.
void finish(const Tensor& node, const Partial& partial, int64_t head, float* to);

/// The sources of a node. source() returns nullptr if the node has no such source.
enum class AttentionSource { kQ, kK, kV, kPositions, kMask, kSinks };
const Tensor* source(const Tensor& node, AttentionSource which);

}  // namespace shoal::cpu
