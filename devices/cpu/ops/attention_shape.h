// The work of attention: the tiles of a node, the KV rows that its queries see, and the partial results that are
// merged.
//
// KV rows are cut into segments at fixed positions. A segment gives each row a Partial: the largest score m, the sum l
// of exp(score - m), and the values weighted by exp(score - m). Partials are merged in the order of segments. So the
// result has the same bits whether one thread or several threads run the segments. Example: scores 1, 3 | 2 in two
// segments give m = 3, l = e^-2 + 1 and m = 2, l = 1. Merged: m = 3, l = e^-2 + 1 + e^-1.
#pragma once

#include <cstddef>
#include <cstdint>

#include "devices/cpu/kernels/attention.h"
#include "graph/tensor.h"

namespace shoal::cpu {

inline constexpr int64_t kLaneQueries = 8;    ///< with at least this many queries, each lane processes one query
inline constexpr int64_t kSegmentRows = 512;  ///< KV rows per segment; more if there would otherwise be over
                                              ///< kMaxSegments segments
inline constexpr int64_t kMaxSegments = 32;

/// `floats` rounded up to a multiple of kMaxLanes: whole vectors of any instruction set, and whole cache lines.
int64_t padded(int64_t floats);

/// Constants of a node, computed from its shapes and parameters.
struct AttentionShape {
  explicit AttentionShape(const Tensor& node);
  int64_t d, e, s, t, h, z;
  int64_t kv_heads, group;                 ///< number of KV heads; query heads per KV head
  int64_t tile_heads, tile_queries;        ///< heads and queries per tile
  int64_t head_tiles, query_tiles, tiles;  ///< number of tiles per KV head's group, per batch's queries, and per node
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
/// The KV rows that a query may see. No other KV row is read for this query.
KvRange visible(const Tensor& node, int64_t query, int64_t batch);
/// The smallest range with all KV rows that the node's queries may see.
KvRange visible(const Tensor& node);

/// Running soft-max of one row. `values` points to e weighted sums.
struct Partial {
  float top = 0;            ///< -infinity if every score so far is -infinity or NaN
  float sum = 0;            ///< 0 before any visible score; then at least 1, or NaN if a score was NaN
  float* values = nullptr;  ///< unset while sum is 0
};
/// Merges `from` into `into`.
void merge(Partial& into, const Partial& from, int64_t e);
/// Writes the result row: values / sum, where the sum includes the head's sink, or zeros if no score was visible. Also
/// writes lse if the node has it.
void finish(const Tensor& node, const Partial& partial, int64_t head, float* to);

/// The sources of a node. source() returns nullptr if the node lacks the source.
enum class AttentionSource { kQ, kK, kV, kPositions, kMask, kSinks };
const Tensor* source(const Tensor& node, AttentionSource which);

}  // namespace shoal::cpu
