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
  int64_t d, e, t, h, z;
  int64_t s;                ///< number of KV rows per sequence: all KV rows, or the rows of a column of the table
  int64_t page, pages;      ///< number of KV rows per page, and number of pages; 0 without a table
  int64_t kv_heads, group;  ///< number of KV heads; number of query heads per KV head
  int64_t tile_heads, tile_queries;  ///< maximum number of heads and of queries per tile
  int64_t head_tiles;                ///< number of tiles along the heads of one KV head
  int64_t min_tiles, max_tiles;      ///< number of tiles in the whole node, for one sequence and for t sequences
  int64_t segment_rows, segments;
  /// Maximum number of rows in a tile of this node.
  int64_t tile_rows() const { return tile_heads * tile_queries; }
  /// Whether a tile may have the lanes form.
  bool lanes() const { return t >= kLaneQueries; }
  /// Number of scratch floats that a Tile needs.
  size_t scratch_floats() const;
};

/// Divides the queries of a batch into the queries of tiles. All queries of a tile are consecutive and have the same
/// sequence, because sequences share no KV rows. Each part of a node has its own object.
class QueryTiles {
 public:
  QueryTiles(const Tensor& node, const AttentionShape& shape);
  int64_t count() const { return count_; }
  struct Queries {
    int64_t first = 0, count = 0;
    int64_t run = 0;  ///< number of consecutive queries with the same sequence, including queries of other tiles
  };
  /// Returns the queries of a tile. If the indices of successive calls ascend, the calls read each sequence once.
  Queries find(int64_t index);

 private:
  Queries run_at(int64_t first) const;

  const Tensor& node_;
  int64_t t_, tile_queries_, count_ = 0;
  Queries run_;               ///< the current run of queries with the same sequence
  int64_t index_of_run_ = 0;  ///< index of the run's first tile
};

/// Rows [begin, end) of a sequence. Without a table, these are rows of the KV axis.
struct KvRange {
  int64_t begin = 0, end = 0;
};
/// Returns the KV rows that a query may see. No other KV row changes the result of this query.
KvRange visible(const Tensor& node, const AttentionShape& shape, int64_t query, int64_t batch);
/// Returns the smallest range that contains all KV rows that at least one query of the node may see.
KvRange visible(const Tensor& node, const AttentionShape& shape);

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
enum class AttentionSource { kQ, kK, kV, kPositions, kMask, kSinks, kTable, kSequences };
const Tensor* source(const Tensor& node, AttentionSource which);
/// Returns the sequence of a query. The node has a table.
int64_t sequence_of(const Tensor& node, int64_t query);

}  // namespace shoal::cpu
