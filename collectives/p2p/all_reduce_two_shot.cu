// Two-shot all_reduce: every rank sums its part of each chunk and sends the result to all other ranks. Every rank sends
// 2 * (n - 1) / n * S bytes (n: ranks, S: message size). One-shot sends more bytes than two-shot, so two-shot is used
// for large messages.
//
// In each step a block sends the addends of one chunk together with the results of the previous chunk, so k chunks take
// k + 1 steps.
//
//   2 ranks, parts of 4 elements, 13 elements, 1 block:   chunk 0: [0, 4) rank 0, [4, 8) rank 1
//                                                          chunk 1: [8, 12) rank 0, [12, 13) rank 1
#include <algorithm>

#include "collectives/p2p/dispatch.h"
#include "collectives/p2p/kernels.h"
#include "collectives/p2p/lanes.h"

namespace shoal::collectives::p2p {
namespace {

struct Chunks {
  int64_t count;  ///< number of elements in the message
  int64_t part;   ///< number of elements in one rank's part of a chunk; a multiple of the pack size
  int ranks;

  __device__ Range of(int64_t chunk, int rank) const {
    const int64_t first = (chunk * ranks + rank) * part;
    return {first < count ? first : count, first + part < count ? first + part : count};
  }
  constexpr int64_t number() const { return (count + part * ranks - 1) / (part * ranks); }
};

template <class T, class W>
struct TwoShot {
  static constexpr int kCount = kElements<W, 16>;
  const Mesh& mesh;
  const Chunks& chunks;
  const Array<const T> source;
  const Array<T> target;

  __device__ void send_addends(const Turn& turn, int64_t chunk) const {
    for (int i = 1; i < chunks.ranks; ++i) {
      const int to = (mesh.rank + i) % chunks.ranks;
      send_range<T, W>(source, chunks.of(chunk, to), lanes(mesh, turn, to, mesh.rank));
    }
  }
  /// Sums the rank's own part of the chunk. Writes the result to the peers' lanes (slots.h) of the next step.
  __device__ void sum_part(const Turn& turn, int64_t chunk) const {
    const Range range = chunks.of(chunk, mesh.rank);
    const size_t second_lane = mesh.layout.lane_bytes();
    for (int64_t i = threadIdx.x; range.first + i * kCount < range.end; i += kThreads) {
      Pack<T, kCount> sum = sum_of_lanes<T, W>(mesh, turn, source, range, i);
      round_to_wire<W>(sum);
      uint32_t words[4];
      encode<W>(sum, words);
      for (int k = 1; k < chunks.ranks; ++k) {
        const int to = (mesh.rank + k) % chunks.ranks;
        store_words<16>(lanes(mesh, turn, to, mesh.rank, 1) + second_lane + i * 16, words);
      }
      target.store(range.first + i * kCount, range.end, sum);
    }
  }
  __device__ void take_results(const Turn& turn, int64_t chunk) const {
    for (int k = 1; k < chunks.ranks; ++k) {
      const int from = (mesh.rank + k) % chunks.ranks;
      const Range range = chunks.of(chunk, from);
      const uint8_t* lane = lanes(mesh, turn, mesh.rank, from) + mesh.layout.lane_bytes();
      for (int64_t i = threadIdx.x; range.first + i * kCount < range.end; i += kThreads) {
        uint32_t words[4];
        load_words<16>(lane + i * 16, words);
        target.store(range.first + i * kCount, range.end, decode<T, W, kCount>(words));
      }
    }
  }
};

template <class T, class W>
__global__ void __launch_bounds__(kThreads, 1) two_shot_kernel(Mesh mesh, const T* in, T* out, Chunks chunks) {
  let_next_start(mesh);
  Turn turn;
  if (!begin(mesh, turn)) return;
  const TwoShot<T, W> two_shot{mesh, chunks, Array<const T>(in), Array<T>(out)};
  const int64_t number = chunks.number();
  const int64_t first = blockIdx.x, stride = gridDim.x;
  for (int64_t chunk = first; chunk < number + stride; chunk += stride, ++turn.exchanges) {
    if (chunk < number) two_shot.send_addends(turn, chunk);
    if (!exchange(mesh, turn)) return;
    if (chunk != first) two_shot.take_results(turn, chunk - stride);
    if (chunk < number) two_shot.sum_part(turn, chunk);
  }
  finish_exchanges(mesh, turn);
}

}  // namespace

void all_reduce_two_shot(const cuda::LaunchContext& context, const Mesh& mesh, const Reduction& reduction,
                         int64_t count) {
  with_types(reduction.element, [&]<class T, class W>(Types<T, W>) {
    constexpr int64_t kPack = kElements<W, 16>;
    constexpr int64_t kLeastPacks = 64;  // 1 KiB; if the parts were smaller, an additional block would cost more time
                                         // than it saves
    const int64_t most = static_cast<int64_t>(mesh.layout.lane_bytes() / 16);
    const int64_t even = divide_up(divide_up(count, kPack), mesh.layout.ranks * mesh.layout.blocks);
    const Chunks chunks{count, std::clamp(even, kLeastPacks, most) * kPack, mesh.layout.ranks};
    const dim3 blocks(static_cast<unsigned>(std::min<int64_t>(chunks.number(), mesh.layout.blocks)));
    cuda::launch(context.stream, two_shot_kernel<T, W>, blocks, dim3(kThreads), 0, mesh,
                 static_cast<const T*>(reduction.in), static_cast<T*>(reduction.out), chunks);
  });
}

}  // namespace shoal::collectives::p2p
