// Finds the rows of k and v that hold the keys of a tile. Without pages, key n of a sequence is row n. With pages, the
// table contains the page of the key. Kernels on tensor cores find the rows of a tile two tiles in advance, so that the
// copies of the tile do not wait for the table.
#pragma once

#include "devices/cuda/kernels/attention_places.h"

namespace shoal::cuda::attention {

inline constexpr int kNoRow = -1;        ///< no query of the block sees the key
inline constexpr int kMissingPage = -2;  ///< the page is not in k and v; the key is hidden

/// The rows of the keys of three consecutive tiles, in shared memory. A row is negative if the key must not be read.
struct KeyRows {
  static constexpr int kTiles = 3;
  static constexpr int kWarpsOfTile = kKeys / 32;

  int rows[kTiles][kKeys];
  uint32_t missing[kTiles][kWarpsOfTile];  ///< nonzero if a page of these keys is missing

  __device__ const int* of(int tile) const { return rows[tile % kTiles]; }
  __device__ bool has_missing(int tile) const { return (missing[tile % kTiles][0] | missing[tile % kTiles][1]) != 0; }

  /// Returns the row of the key that this thread finds.
  __device__ static int find(const Arguments& a, const Work& work, int tile) {
    const int key = tile * kKeys + static_cast<int>(threadIdx.x);
    if (threadIdx.x >= kKeys || key < work.sight.some.begin || key >= work.sight.some.end) return kNoRow;
    if (a.pages.size == 0) return key;
    const int entry = key / a.pages.size;
    const int page =
        load_as<int32_t>(a.pages.table + work.place.sequence * a.pages.table_stride + entry * a.pages.entry_stride);
    return page < 0 || page >= a.pages.count ? kMissingPage : page * a.pages.size + key - entry * a.pages.size;
  }
  /// Stores the result of find(). After the next barrier, all threads may read it.
  __device__ void store(int tile, int row) {
    const int thread = static_cast<int>(threadIdx.x);
    if (thread >= kKeys) return;
    rows[tile % kTiles][thread] = row;
    const uint32_t bits = __ballot_sync(~0u, row == kMissingPage);
    if (thread % 32 == 0) missing[tile % kTiles][thread / 32] = bits;
  }
  /// Finds the rows of the first two tiles. All threads of the block call start().
  __device__ void start(const Arguments& a, const Work& work) {
    const int tile = work.share.tiles.begin;
    store(tile, find(a, work, tile));
    store(tile + 1, find(a, work, tile + 1));
    __syncthreads();
  }
};
static_assert(KeyRows::kWarpsOfTile == 2);

}  // namespace shoal::cuda::attention
