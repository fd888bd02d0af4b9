// Arguments of the attention kernels, and the division of the KV rows into tiles and segments. A kernel processes all
// query heads that share a KV head together, as rows. Row `query * group + i` belongs to query `query` and to head i of
// the `group` heads that share the KV head. A block visits the KV rows of a sequence in tiles of kKeys.
//
// Tiles form *segments*, whose boundaries depend only on the positions of the KV rows. The first 4096 KV rows form 32
// segments of two tiles (128 rows). After that, the rows from 2^n to 2^(n + 1) form 16 segments. So a long sequence has
// few segments, and each of these segments has at most 1/16 as many rows as there are before it:
//
//   KV rows        0 .. 4095   4096 .. 8191   8192 .. 16383   16384 .. 32767
//   segments            0 .. 31       32 .. 47        48 .. 63         64 .. 79
//   rows per segment        128            256             512            1024
//
// A kernel computes a partial result of each segment: the largest score, the sum of the weights exp(score - largest),
// and the sum of the weighted values. The partial results of a row are added in the order of segments. One block may
// process all segments, or several blocks may share the segments. The order of operations is the same. So a row of the
// result depends only on its query and on the KV rows that the query sees, bit for bit.
#pragma once

#include <limits>

#include "devices/cuda/column_record.h"
#include "devices/cuda/kernels/memory.h"
#include "devices/cuda/kernels/platform.h"
#include "graph/dtype.h"

namespace shoal::cuda::attention {

inline constexpr int kKeys = 64;  ///< KV rows per tile
inline constexpr int kThreads = 128;
inline constexpr int kSplitRows = 16;  ///< see Arguments::partial_rows
inline constexpr float kMinusInfinity = -std::numeric_limits<float>::infinity();

/// Binary logarithm of the number of tiles in the segment that contains the tile.
__host__ __device__ inline int segment_shift(int tile) {
  int shift = 1;
  while (tile >> shift >= 32) ++shift;
  return shift;
}
/// The segment that contains the tile.
__host__ __device__ inline int segment_of(int tile) {
  const int shift = segment_shift(tile);
  return 16 * (shift - 1) + (tile >> shift);
}
/// The first tile of a segment.
__host__ __device__ inline int first_tile_of(int segment) {
  const int shift = segment < 32 ? 1 : segment / 16;
  return (segment - 16 * (shift - 1)) << shift;
}

/// The tensor q, k or v. Strides are in bytes.
struct Source {
  const std::byte* data = nullptr;
  const std::byte* end = nullptr;  ///< one past the last byte
  DType dtype = DType::kF32;
  int64_t element = 0, row = 0, head = 0, batch = 0;
};

/// The pages of the sequences (graph/ops/ops.h). Strides are in bytes.
struct Pages {
  int size = 0;   ///< KV rows per page; 0: no pages, and all queries belong to one sequence
  int count = 0;  ///< number of pages that k and v contain
  const std::byte* table = nullptr;
  int64_t entry_stride = 0, table_stride = 0;  ///< strides of the pages of a sequence, and of the sequences
  const std::byte* sequences = nullptr;
  int64_t sequence_stride = 0;
  int sequence_count = 0;
};

struct Arguments {
  Source q, k, v;
  Pages pages;
  const std::byte* positions = nullptr;  ///< nullptr: all rows are visible
  int64_t position_stride = 0, position_batch = 0;
  const std::byte* mask = nullptr;  ///< nullptr: no mask
  int64_t mask_element = 0, mask_row = 0;
  int64_t mask_head = 0, mask_batch = 0;  ///< nonzero only for attention_rows
  bool mask_f16 = false;
  const std::byte* sinks = nullptr;  ///< nullptr: no sinks
  int64_t sink_stride = 0;
  float* result = nullptr;  ///< [e, h, t, z], or [e + 1, h, t, z] with the log-sum-exp (lse) of each row
  bool has_lse = false;
  ColumnRecord record;  ///< 8-bit copy of the result (column_record.h); used only if there is one query and e is a
                        ///< multiple of 32
  /// Memory of the partial results; used only if several blocks share the segments of a row. The memory contains first
  /// the values [e] of each (segment, row), then the pair (top, sum) of each (segment, row). attention_slices stores
  /// this pair once for each part of the e columns.
  float* partials = nullptr;
  /// Number of rows of a KV head whose partial results fit into `partials`. If not all rows fit, only the segments of
  /// short runs are shared: runs of queries of one sequence with at most kSplitRows rows.
  int partial_rows = 0;
  uint32_t* counters = nullptr;  ///< LaunchContext::counters
  float scale = 1, softcap = 0;
  bool causal = false;
  int64_t window = 0;
  int d = 0, e = 0;
  int s = 0;  ///< number of KV rows of a sequence, including rows that no query may see
  int t = 0, group = 1, kv_heads = 1, batches = 1;
  int segments = 0;   ///< number of segments of s KV rows
  int tile_rows = 0;  ///< largest number of rows of a block
  int row_tiles = 0;  ///< number of blocks that compute different rows of a KV head
  bool more = false;  ///< whether there may be more row tiles; the block of row tile row_tiles - 1 also computes them
  int splits = 1;     ///< largest number of blocks that share the segments of a row
};

/// The KV rows, tiles or segments [begin, end).
struct Range {
  int begin = 0, end = 0;
  __device__ bool empty() const { return begin >= end; }
};

}  // namespace shoal::cuda::attention
