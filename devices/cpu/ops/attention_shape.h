// Describes the work of an attention node: its tiles, and the KV rows that its queries see.
//
// KV rows are cut into segments at fixed positions. Partial results of segments are merged in a fixed order
// (attention_partials.h). If a few tiles are long, several threads process spans of one tile. A span is a fixed number
// of segments, from an aligned position on. No result depends on the number of spans or tiles.
#pragma once

#include <cstddef>
#include <cstdint>

#include "devices/cpu/kernels/attention.h"
#include "graph/tensor.h"

namespace shoal::cpu {

inline constexpr int64_t kSegmentRows = 512;  ///< number of KV rows per segment
inline constexpr int64_t kMaxSpans = 32;      ///< maximum number of spans per tile

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
  int64_t query_tiles;               ///< number of tiles along the queries if all queries have the same sequence
  int64_t same_queries;              ///< number of tiles with the same queries, in all batches
  int64_t lane_rows;                 ///< minimum number of rows for tiles of the lanes form (kernels/attention.h)
  int64_t segments;
  int64_t span_level, spans;  ///< a span consists of 2^span_level segments
  /// Maximum number of rows in a tile of this node.
  int64_t tile_rows() const { return tile_heads * tile_queries; }
  /// Whether a tile may have the lanes form.
  bool lanes() const { return tile_rows() >= lane_rows; }
  int64_t span_rows() const { return kSegmentRows << span_level; }
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
/// Returns the smallest range that contains both ranges. Empty ranges contain nothing.
KvRange unite(KvRange a, KvRange b);

/// The sources of a node. source() returns nullptr if the node has no such source.
enum class AttentionSource { kQ, kK, kV, kPositions, kMask, kSinks, kTable, kSequences };
const Tensor* source(const Tensor& node, AttentionSource which);
/// Returns the sequence of a query. The node has a table.
int64_t sequence_of(const Tensor& node, int64_t query);

}  // namespace shoal::cpu
