// reduce_scatter: every rank sends to each peer the data for the peer's part, and sums its own part. Every rank sends
// (n - 1) / n * S bytes (n: ranks, S: message size).
#include <algorithm>

#include "collectives/p2p/dispatch.h"
#include "collectives/p2p/kernels.h"
#include "collectives/p2p/lanes.h"

namespace shoal::collectives::p2p {
namespace {

struct Scatter {
  int64_t begin[kMaxRanks + 1];  ///< index of the first element in each rank's part
  int64_t chunk;                 ///< number of elements of every part that one step sends; a multiple of the pack size
  int64_t chunks;

  __device__ Range of(int64_t number, int rank) const {
    const int64_t end = begin[rank + 1];
    const int64_t first = begin[rank] + number * chunk;
    return {first < end ? first : end, first + chunk < end ? first + chunk : end};
  }
};

template <class T, class W>
__global__ void __launch_bounds__(kThreads, 1) reduce_scatter_kernel(Mesh mesh, const T* in, T* out, Scatter scatter) {
  constexpr int kCount = kElements<W, 16>;
  let_next_start(mesh);
  Turn turn;
  if (!begin(mesh, turn)) return;
  const int64_t own = scatter.begin[mesh.rank];
  const Array<T> target(out);
  for (int64_t number = blockIdx.x; number < scatter.chunks; number += gridDim.x, ++turn.exchanges) {
    for (int i = 1; i < mesh.layout.ranks; ++i) {
      const int to = (mesh.rank + i) % mesh.layout.ranks;
      const Range range = scatter.of(number, to);
      const Array<const T> part(in + range.first);
      send_range<T, W>(part, {0, range.end - range.first}, lanes(mesh, turn, to, mesh.rank));
    }
    if (!exchange(mesh, turn)) return;
    const Range range = scatter.of(number, mesh.rank);
    const Array<const T> part(in + range.first);
    const Range local{0, range.end - range.first};
    for (int64_t i = threadIdx.x; i * kCount < local.end; i += kThreads) {
      const Pack<T, kCount> sum = sum_of_lanes<T, W>(mesh, turn, part, local, i);
      target.store(range.first - own + i * kCount, range.end - own, sum);
    }
  }
  finish_exchanges(mesh, turn);
}

}  // namespace

void reduce_scatter(const cuda::LaunchContext& context, const Mesh& mesh, const Reduction& reduction,
                    const Parts& parts) {
  with_types(reduction.element, [&]<class T, class W>(Types<T, W>) {
    constexpr int64_t kPack = kElements<W, 16>;
    constexpr int64_t kLeastPacks = 64;
    Scatter scatter{};
    int64_t most = 0;
    for (int rank = 0; rank < mesh.layout.ranks; ++rank) {
      scatter.begin[rank + 1] = scatter.begin[rank] + parts.count[rank];
      most = std::max(most, parts.count[rank]);
    }
    // Each sender has two lanes. The kernel uses only the first lane, because a sum reads the lanes of the senders at a
    // constant stride.
    const int64_t fits = static_cast<int64_t>(mesh.layout.lane_bytes() / 16);
    scatter.chunk = std::clamp(divide_up(divide_up(most, kPack), mesh.layout.blocks), kLeastPacks, fits) * kPack;
    scatter.chunks = divide_up(most, scatter.chunk);
    if (scatter.chunks == 0) return;
    const dim3 blocks(static_cast<unsigned>(std::min<int64_t>(scatter.chunks, mesh.layout.blocks)));
    cuda::launch(context.stream, reduce_scatter_kernel<T, W>, blocks, dim3(kThreads), 0, mesh,
                 static_cast<const T*>(reduction.in), static_cast<T*>(reduction.out), scatter);
  });
}

}  // namespace shoal::collectives::p2p
