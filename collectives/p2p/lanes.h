// Sums the data in lanes (slots.h) for the two-shot all_reduce and for reduce_scatter. Device code.
#pragma once

#include "collectives/p2p/flags.h"
#include "collectives/p2p/wire.h"

namespace shoal::collectives::p2p {

/// Elements [first, end) of an array.
struct Range {
  int64_t first;
  int64_t end;
};

/// The block writes a range of elements into a lane. Each thread writes whole packs of 16 bytes.
template <class T, class W>
__device__ inline void send_range(const Array<const T>& from, Range range, uint8_t* lane) {
  constexpr int kCount = kElements<W, 16>;
  for (int64_t i = threadIdx.x; range.first + i * kCount < range.end; i += kThreads) {
    uint32_t words[4];
    encode<W>(from.template load<kCount>(range.first + i * kCount, range.end), words);
    store_words<16>(lane + i * 16, words);
  }
}

/// Returns pack `index` of a range, summed over all ranks in rank order. The rank's own addend is in `own`; the peers'
/// addends are in the lanes.
template <class T, class W>
__device__ inline Pack<T, kElements<W, 16>> sum_of_lanes(const Mesh& mesh, const Turn& turn, const Array<const T>& own,
                                                         Range range, int64_t index) {
  constexpr int kCount = kElements<W, 16>;
  const uint8_t* lane = lanes(mesh, turn, mesh.rank, 0) + index * 16;
  const size_t stride = 2 * mesh.layout.lane_bytes();
  Pack<T, kCount> sum;
#pragma unroll 4
  for (int from = 0; from < mesh.layout.ranks; ++from, lane += stride) {
    Pack<T, kCount> addend;
    if (from == mesh.rank) {
      addend = own.template load<kCount>(range.first + index * kCount, range.end);
      round_to_wire<W>(addend);
    } else {
      uint32_t words[4];
      load_words<16>(lane, words);
      addend = decode<T, W, kCount>(words);
    }
    if (from == 0) {
      sum = addend;
    } else {
      sum.add(addend);
    }
  }
  return sum;
}

}  // namespace shoal::collectives::p2p
