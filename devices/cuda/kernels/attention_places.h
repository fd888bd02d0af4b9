// The work of the blocks of an attention kernel. A block computes at most `tile_rows` consecutive rows of a KV head (a
// row tile). The queries of a row tile belong to one sequence, because sequences share no KV rows.
//
// With pages, a *run* consists of consecutive queries of one sequence, and the rows of a run are divided into row
// tiles. The grid does not depend on the sequences, because a captured CUDA graph repeats the launch with other
// sequences. So each block finds its row tile in device memory. Example with 4 heads per KV head and 16 rows per tile:
// the queries of sequences 2 0 1 1 1 1 1 form the runs 2, 0 and 1 1 1 1 1, and the row tiles 0-3, 4-7, 8-23 and 24-27.
#pragma once

#include "devices/cuda/kernels/attention_arguments.h"

namespace shoal::cuda::attention {

/// The work of a block. Blocks of one KV head are consecutive.
struct Place {
  int first_row = 0, rows = 0;  ///< first row within the KV head; number of rows
  int kv_head = 0, batch = 0, split = 0;
  int sequence = 0;  ///< -1 if the sequence does not exist
  int partial_row =
      -1;  ///< index of the first row in the memory of partial results; -1: no other block shares segments
};

__device__ inline int query_of(const Arguments& a, int row) {
  return row / a.group;
}
__device__ inline int head_of(const Arguments& a, int kv_head, int row) {
  return kv_head * a.group + row % a.group;
}

__device__ inline int sequence_of(const Arguments& a, int query) {
  return load_as<int32_t>(a.pages.sequences + query * a.pages.sequence_stride);
}

/// Returns the sum of `value` over this lane and all lower lanes.
__device__ inline int sum_up_to_lane(int value) {
  const int lane = static_cast<int>(threadIdx.x % 32);
  for (int lanes = 1; lanes < 32; lanes *= 2) {
    const int other = __shfl_up_sync(~0u, value, lanes);
    if (lane >= lanes) value += other;
  }
  return value;
}

/// Looks for the row tile `index` among the runs of queries. All threads of a block construct a Search and call its
/// functions.
class Search {
 public:
  __device__ Search(const Arguments& a, int index) : a_(a), index_(index) {}

  /// Sets the rows and the sequence of `place`. Returns false if there are not that many row tiles.
  __device__ bool find(Place& place) {
    __shared__ uint32_t ends[kWords];  // one bit per query: whether a run ends with the query
    const int lane = static_cast<int>(threadIdx.x % 32), warp = static_cast<int>(threadIdx.x / 32);
    for (int first = 0; first < a_.t; first += kWords * 32) {
      __syncthreads();  // the words of the previous queries are no longer read
      for (int word = warp; word < kWords; word += static_cast<int>(blockDim.x / 32)) {
        const uint32_t bits = __ballot_sync(~0u, ends_run(first + word * 32 + lane));
        if (lane == 0) ends[word] = bits;
      }
      __syncthreads();
      const uint32_t own = ends[lane];
      for (uint32_t words = __ballot_sync(~0u, own != 0); words != 0; words &= words - 1) {
        const int word = __ffs(words) - 1;
        if (find(first + word * 32, __shfl_sync(~0u, own, word), place)) return true;
      }
    }
    return false;
  }

 private:
  static constexpr int kWords = 32;

  __device__ bool ends_run(int query) const {
    if (query >= a_.t) return false;
    return query + 1 == a_.t || sequence_of(a_, query) != sequence_of(a_, query + 1);
  }

  /// Looks at the runs that end among the 32 queries from `first` on.
  __device__ bool find(int first, uint32_t ends, Place& place) {
    const int lane = static_cast<int>(threadIdx.x % 32), end = first + lane + 1;
    const uint32_t before = ends & ((1u << lane) - 1);
    const int begin = before != 0 ? first + 32 - __clz(before) : begin_;
    const int rows = (ends >> lane & 1) != 0 ? (end - begin) * a_.group : 0;
    const int tiles = (rows + a_.tile_rows - 1) / a_.tile_rows, upto = sum_up_to_lane(tiles);
    const bool shares = a_.partial_rows < a_.t * a_.group;  // whether only short runs have partial results
    const int shared = rows <= kSplitRows ? rows : 0, shared_upto = shares ? sum_up_to_lane(shared) : 0;
    const uint32_t found = __ballot_sync(~0u, index_ < upto);
    if (found != 0) {
      const int source = __ffs(found) - 1;
      const int run = __shfl_sync(~0u, begin, source), run_rows = __shfl_sync(~0u, rows, source);
      const int in_run = (index_ - __shfl_sync(~0u, upto - tiles, source)) * a_.tile_rows;
      const int partial = shared_ + __shfl_sync(~0u, shared_upto - shared, source);
      const int sequence = sequence_of(a_, run);
      place.first_row = run * a_.group + in_run;
      place.rows = min(a_.tile_rows, run_rows - in_run);
      place.sequence = sequence >= 0 && sequence < a_.pages.sequence_count ? sequence : -1;
      place.partial_row = !shares ? place.first_row : -1;
      if (shares && run_rows <= kSplitRows && partial + run_rows <= a_.partial_rows)
        place.partial_row = partial + in_run;
      return true;
    }
    index_ -= __shfl_sync(~0u, upto, 31);
    shared_ += __shfl_sync(~0u, shared_upto, 31);
    begin_ = first + 32 - __clz(ends);
    return false;
  }

  const Arguments& a_;
  int index_;       ///< number of row tiles before the wanted row tile
  int begin_ = 0;   ///< first query of the run that has not ended yet
  int shared_ = 0;  ///< number of rows of the short runs so far
};

/// Calls f(place) for each row tile of the block. Usually, a block has one row tile, or none. The first blocks compute
/// the rows with the largest indices, because without pages, these rows see the most KV rows. All threads of the block
/// call for_places() after wait_for_previous(). Code of f that uses threadIdx.x outside of the loop over tiles calls
/// kept(threadIdx.x). Otherwise, compilers move such code out of the loop over row tiles, and its results occupy
/// registers.
template <class F>
__device__ inline void for_places(const Arguments& a, const F& f) {
  const int block = static_cast<int>(blockIdx.x), heads = block / a.row_tiles;
  Place place;
  place.kv_head = heads % a.kv_heads, place.batch = heads / a.kv_heads % a.batches;
  place.split = heads / a.kv_heads / a.batches;
#pragma unroll 1
  for (int tile = a.row_tiles - 1 - block % a.row_tiles;; ++tile) {
    if (a.pages.size == 0) {
      place.first_row = place.partial_row = tile * a.tile_rows;
      place.rows = min(a.tile_rows, a.t * a.group - place.first_row);
    } else if (!Search(a, tile).find(place)) {
      return;
    }
    if (a.splits == 1 || tile >= a.row_tiles) place.partial_row = -1;
    f(place);
    if (!a.more || tile + 1 < a.row_tiles || place.split > 0) return;
  }
}

/// The KV rows that a query sees, apart from rows of missing pages.
__device__ inline Range visible(const Arguments& a, const Place& place, int query) {
  int64_t begin = 0, end = place.sequence < 0 ? 0 : a.s;
  if (a.positions != nullptr) {
    const int64_t position = load_as<int32_t>(a.positions + query * a.position_stride + place.batch * a.position_batch);
    if (a.causal && position + 1 < end) end = position + 1;
    if (a.window > 0 && position - a.window + 1 > 0) begin = position - a.window + 1;
  }
  if (begin >= end) return {0, 0};
  return {static_cast<int>(begin), static_cast<int>(end)};
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
    const Range range = visible(a, place, query);
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

/// The segments and tiles of a block. `used` blocks share the segments `all` of a row. `used` is at least 1, because
/// one block must write the result even if no KV row is visible.
struct Share {
  Range segments, tiles;
  Range all;
  int used = 1;

  /// The block's tiles of a segment.
  __device__ Range tiles_of(int segment) const {
    return {max(tiles.begin, first_tile_of(segment)), min(tiles.end, first_tile_of(segment + 1))};
  }
};

/// Divides the segments among blocks. Each block has about the same number of tiles.
__device__ inline Share share_of(const Arguments& a, const Place& place, Range some) {
  Share share;
  if (some.empty()) return share;
  const int first = some.begin / kKeys, end = (some.end + kKeys - 1) / kKeys;
  share.all = {segment_of(first), segment_of(end - 1) + 1};
  share.used = place.partial_row < 0 ? 1 : min(a.splits, share.all.end - share.all.begin);
  const auto boundary = [&](int split) {
    if (split >= share.used) return share.all.end;
    return segment_of(first + static_cast<int>(static_cast<int64_t>(end - first) * split / share.used));
  };
  share.segments = {boundary(place.split), boundary(place.split + 1)};
  share.tiles = {max(first, first_tile_of(share.segments.begin)), min(end, first_tile_of(share.segments.end))};
  return share;
}

/// The work of a block on one place, in shared memory. Kernels need most of the numbers rarely, so the numbers should
/// not occupy registers.
struct Work {
  Place place;
  Sight sight;
  Share share;

  __device__ bool alone() const { return share.used == 1; }
  /// Whether the mask and the positions hide no key of the tile.
  __device__ bool sees_whole(const Arguments& a, int tile) const {
    return a.mask == nullptr && tile * kKeys >= sight.all.begin && (tile + 1) * kKeys <= sight.all.end;
  }
};

/// Sets `work`. After the next barrier, all threads may read it. Returns false if the block has no work.
__device__ inline bool start_work(const Arguments& a, const Place& place, Work& work) {
  const Sight in_sight = sight(a, place);
  const Share share = share_of(a, place, in_sight.some);
  if (threadIdx.x == 0) work = {place, in_sight, share};
  __syncthreads();
  return place.split < share.used;
}

/// Returns the address of a row's result.
__device__ inline float* result_of(const Arguments& a, const Place& place, int row) {
  const int64_t query = static_cast<int64_t>(place.batch) * a.t + query_of(a, row);
  return a.result + (query * a.kv_heads * a.group + head_of(a, place.kv_head, row)) * (a.e + a.has_lse);
}

/// The blocks that share the segments of the same rows and columns form a group. group_of() returns the index of the
/// block's group. In attention_slices, blockIdx.y selects the columns.
__device__ inline int group_of(const Arguments& a) {
  const int groups = a.row_tiles * a.kv_heads * a.batches;
  return static_cast<int>(blockIdx.x) % groups + static_cast<int>(blockIdx.y) * groups;
}

/// Adds the mask to a score. Returns -infinity if the mask hides the key. `key` must be in the query's visible range.
/// `plane` is the offset of the mask of the head and batch, in bytes.
__device__ inline float add_mask(const Arguments& a, int query, int key, float score, int64_t plane = 0) {
  const std::byte* at = a.mask + plane + query * a.mask_row + key * a.mask_element;
  const float added = a.mask_f16 ? __half2float(load_as<__half>(at)) : load_as<float>(at);
  return added == kMinusInfinity ? kMinusInfinity : score + added;
}
__device__ inline float soft_cap(const Arguments& a, float score) {
  return a.softcap > 0 ? __fmul_rn(a.softcap, tanhf(score / a.softcap)) : score;
}

}  // namespace shoal::cuda::attention
