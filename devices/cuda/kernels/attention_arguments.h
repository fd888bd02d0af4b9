// Arguments and common rules of the attention kernels: the KV rows that a query sees, the division of the work among
// blocks, and the memory of partial results. A kernel processes all query heads that share a KV head together, as rows.
// Row `query * group + i` belongs to query `query` and to head i of the `group` heads that share the KV head. A block
// processes `tile_rows` rows of one KV head and visits the KV rows in tiles of kKeys.
//
// The kernel computes the visible KV tiles of these rows from the positions. So a captured CUDA graph reads only the
// visible tiles of the current step, however long the cache is. The kernel divides these tiles among `splits` blocks
// into contiguous ranges of equal length. The last ranges may be shorter or empty. Example: 300 visible KV rows are 5
// tiles; with 4 splits, the blocks get tiles 0-1, tiles 2-3, tile 4 and no tile. If several blocks have tiles, each
// block stores a partial per row: the largest score, the sum of the weights exp(score - largest), and the sum of the
// weighted values. The last block to finish merges the partials in the order of splits (attention_merge.h).
#pragma once

#include <limits>

#include "devices/cuda/column_record.h"
#include "devices/cuda/kernels/memory.h"
#include "devices/cuda/kernels/platform.h"
#include "graph/dtype.h"

namespace shoal::cuda::attention {

inline constexpr int kKeys = 64;  ///< KV rows per tile
inline constexpr int kThreads = 128;
inline constexpr int kMaxSplits = 128;
inline constexpr int kUnsplitTiles = 2;  ///< up to this number of tiles, one block is faster than several blocks with a
                                         ///< merge
inline constexpr float kMinusInfinity = -std::numeric_limits<float>::infinity();

/// The tensor q, k or v. Strides are in bytes.
struct Source {
  const std::byte* data = nullptr;
  const std::byte* end = nullptr;  ///< one past the last byte
  DType dtype = DType::kF32;
  int64_t element = 0, row = 0, head = 0, batch = 0;
};

struct Arguments {
  Source q, k, v;
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
  /// Memory of the partials; used only if there are several splits. The memory contains first the values [e] of each
  /// (split, row), then the pair (top, sum) of each (split, row). attention_slices stores this pair once for each part
  /// of the e columns.
  float* partials = nullptr;
  uint32_t* counters = nullptr;  ///< LaunchContext::counters
  float scale = 1, softcap = 0;
  bool causal = false;
  int64_t window = 0;
  int d = 0, e = 0, s = 0, t = 0, group = 1, kv_heads = 1, batches = 1;
  int tile_rows = 0, row_tiles = 0, splits = 1;
};

/// The KV rows [begin, end).
struct Range {
  int begin = 0, end = 0;
  __device__ bool empty() const { return begin >= end; }
};

__device__ inline Range visible(const Arguments& a, int query, int batch) {
  int64_t begin = 0, end = a.s;
  if (a.positions != nullptr) {
    const int64_t position = load_as<int32_t>(a.positions + query * a.position_stride + batch * a.position_batch);
    if (a.causal && position + 1 < end) end = position + 1;
    if (a.window > 0 && position - a.window + 1 > 0) begin = position - a.window + 1;
  }
  if (begin >= end) return {0, 0};
  return {static_cast<int>(begin), static_cast<int>(end)};
}

/// The KV tiles of one split, and the number of splits that have tiles (`used`). `used` is at least 1, because one
/// split must write the result even if no KV row is visible.
struct Share {
  int first = 0, last = 0;  ///< tiles [first, last)
  int used = 1;
};
__device__ inline Share share_of(Range some, int splits, int split) {
  if (some.empty()) return {};
  const int first = some.begin / kKeys, tiles = (some.end + kKeys - 1) / kKeys - first;
  const int each = tiles <= kUnsplitTiles ? tiles : (tiles + splits - 1) / splits;
  return {first + min(tiles, split * each), first + min(tiles, (split + 1) * each), (tiles + each - 1) / each};
}

/// The work of a block. Blocks of one KV head are consecutive. The first blocks compute the rows with the largest
/// indices, because these rows see the most KV rows.
struct Place {
  int first_row, rows;  ///< first row within the KV head; number of rows
  int kv_head, batch, split;
};
__device__ inline Place place_of(const Arguments& a) {
  const int block = static_cast<int>(blockIdx.x);
  const int heads = block / a.row_tiles;
  const int first_row = (a.row_tiles - 1 - block % a.row_tiles) * a.tile_rows;
  const int rows = min(a.tile_rows, a.t * a.group - first_row);
  return {first_row, rows, heads % a.kv_heads, heads / a.kv_heads % a.batches, heads / a.kv_heads / a.batches};
}

__device__ inline int query_of(const Arguments& a, int row) {
  return row / a.group;
}
__device__ inline int head_of(const Arguments& a, int kv_head, int row) {
  return kv_head * a.group + row % a.group;
}

/// KV rows that the queries of a block see.
struct Sight {
  Range some;  ///< smallest range that contains every KV row seen by any query
  Range all;   ///< KV rows that every query sees
};

/// Returns the KV rows that the queries of a block see. All lanes of a warp call sight() and get the same result.
__device__ inline Sight sight(const Arguments& a, const Place& place) {
  const int first_query = query_of(a, place.first_row), last_query = query_of(a, place.first_row + place.rows - 1);
  Sight sight{{a.s, 0}, {0, a.s}};
#pragma unroll 2
  for (int query = first_query + static_cast<int>(threadIdx.x % 32); query <= last_query; query += 32) {
    const Range range = visible(a, query, place.batch);
    sight.all = {max(sight.all.begin, range.begin), min(sight.all.end, range.end)};
    if (!range.empty()) sight.some = {min(sight.some.begin, range.begin), max(sight.some.end, range.end)};
  }
  for (int lanes = 16; lanes > 0; lanes /= 2) {
    sight.some.begin = min(sight.some.begin, __shfl_xor_sync(~0u, sight.some.begin, lanes));
    sight.some.end = max(sight.some.end, __shfl_xor_sync(~0u, sight.some.end, lanes));
    sight.all.begin = max(sight.all.begin, __shfl_xor_sync(~0u, sight.all.begin, lanes));
    sight.all.end = min(sight.all.end, __shfl_xor_sync(~0u, sight.all.end, lanes));
  }
  return sight;
}

/// Returns the address of a row's result.
__device__ inline float* result_of(const Arguments& a, int batch, int kv_head, int row) {
  const int64_t query = static_cast<int64_t>(batch) * a.t + query_of(a, row);
  return a.result + (query * a.kv_heads * a.group + head_of(a, kv_head, row)) * (a.e + a.has_lse);
}

/// The blocks that compute different splits of the same rows and columns form a group. group_of() returns the index of
/// the block's group. In attention_slices, blockIdx.y selects the columns.
__device__ inline int group_of(const Arguments& a) {
  const int groups = a.row_tiles * a.kv_heads * a.batches;
  return static_cast<int>(blockIdx.x) % groups + static_cast<int>(blockIdx.y) * groups;
}

/// The partial result of one split for one row.
struct Partial {
  float* values;
  float* stats;  ///< top (largest score) and sum of exp(score - top); top is -infinity if no key was visible
};
__device__ inline Partial partial_of(const Arguments& a, int split, int batch, int kv_head, int row) {
  const int64_t head_rows = static_cast<int64_t>(a.t) * a.group, rows = head_rows * a.kv_heads * a.batches;
  const int64_t index = rows * split + (static_cast<int64_t>(batch) * a.kv_heads + kv_head) * head_rows + row;
  return {a.partials + index * a.e, a.partials + rows * a.splits * (a.e + 2 * blockIdx.y) + index * 2};
}

/// Returns the factor that normalises a row's sum of weighted values.
__device__ inline float final_factor(const Arguments& a, int head, float top, float sum) {
  if (top == kMinusInfinity) return 0;
  if (a.sinks == nullptr) return 1 / sum;
  const float sink = load_as<float>(a.sinks + head * a.sink_stride);
  const float largest = fmaxf(top, sink), keep = expf(top - largest);
  return keep / (sum * keep + expf(sink - largest));
}

/// Stores the row's log-sum-exp if the result includes it.
__device__ inline void store_lse(const Arguments& a, const Place& place, int row, float top, float sum) {
  if (!a.has_lse) return;
  float lse = top == kMinusInfinity ? top : top + logf(sum);
  if (a.sinks != nullptr) {
    const float sink = load_as<float>(a.sinks + head_of(a, place.kv_head, row) * a.sink_stride);
    const float largest = fmaxf(lse, sink);
    if (largest != kMinusInfinity) lse = largest + logf(expf(lse - largest) + expf(sink - largest));
  }
  result_of(a, place.batch, place.kv_head, row)[a.e] = lse;
}

/// Adds the mask to a score. Returns -infinity if the mask hides the key. `key` must be in the query's visible range.
/// `plane` is the offset of the mask of the head and batch, in bytes.
__device__ inline float add_mask(const Arguments& a, int query, int key, float score, int64_t plane = 0) {
  const std::byte* at = a.mask + plane + query * a.mask_row + key * a.mask_element;
  const float added = a.mask_f16 ? __half2float(load_as<__half>(at)) : load_as<float>(at);
  return added == kMinusInfinity ? kMinusInfinity : score + added;
}
__device__ inline float soft_cap(const Arguments& a, float score) {
  return a.softcap > 0 ? a.softcap * tanhf(score / a.softcap) : score;
}

}  // namespace shoal::cuda::attention
