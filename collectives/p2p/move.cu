// The collectives that do not sum. Each rank sends bytes to each rank as described by Routes. The bytes are written to
// the lanes (slots.h) in chunks, with one chunk per pair of ranks in each step.
#include <algorithm>

#include "collectives/p2p/dispatch.h"
#include "collectives/p2p/flags.h"
#include "collectives/p2p/kernels.h"
#include "devices/cuda/kernels/memory.h"

namespace shoal::collectives::p2p {
namespace {

/// Copies all remaining whole words, starting at byte `done`. Adds the number of copied bytes to `done`.
template <class Word>
__device__ void copy_words(uint8_t* to, const uint8_t* from, int64_t bytes, int64_t& done) {
  constexpr int64_t kSize = sizeof(Word);
  const int64_t words = (bytes - done) / kSize;
  for (int64_t i = threadIdx.x; i < words; i += kThreads) {
    const int64_t at = done + i * kSize;
    cuda::store_as(to + at, cuda::load_as<Word>(from + at));
  }
  done += words * kSize;
}

/// The block copies bytes in the widest words that both addresses allow. It copies the remaining bytes in narrower
/// words.
__device__ void copy(uint8_t* to, const uint8_t* from, int64_t bytes) {
  const uintptr_t both = reinterpret_cast<uintptr_t>(to) | reinterpret_cast<uintptr_t>(from);
  int64_t done = 0;
  if (both % 16 == 0) copy_words<uint4>(to, from, bytes, done);
  if (both % 4 == 0) copy_words<uint32_t>(to, from, bytes, done);
  if (both % 2 == 0) copy_words<uint16_t>(to, from, bytes, done);
  copy_words<uint8_t>(to, from, bytes, done);
}

__global__ void __launch_bounds__(kThreads, 1)
    move_kernel(Mesh mesh, const uint8_t* in, uint8_t* out, Routes routes, int64_t chunk, int64_t chunks) {
  let_next_start(mesh);
  Turn turn;
  if (!begin(mesh, turn)) return;
  const auto part = [&](const int64_t(&bytes)[kMaxRanks], int rank, int64_t first) {
    const int64_t left = bytes[rank] - first;
    return left < chunk ? left : chunk;  // 0 or negative if no bytes are left
  };
  const int ranks = mesh.layout.ranks;
  for (int64_t number = blockIdx.x; number < chunks; number += gridDim.x, ++turn.exchanges) {
    const int64_t first = number * chunk;
    for (int i = 1; i < ranks; ++i) {
      const int to = (mesh.rank + i) % ranks;
      const int64_t bytes = part(routes.send_bytes, to, first);
      if (bytes > 0) copy(lanes(mesh, turn, to, mesh.rank), in + routes.send_offset[to] + first, bytes);
    }
    // If the rank's own part is not already at its place in `out`, copies the part directly to this place.
    const uint8_t* own = in + routes.send_offset[mesh.rank];
    uint8_t* own_place = out + routes.receive_offset[mesh.rank];
    const int64_t own_bytes = part(routes.send_bytes, mesh.rank, first);
    if (own_bytes > 0 && own != own_place) copy(own_place + first, own + first, own_bytes);
    if (!exchange(mesh, turn)) return;
    for (int i = 1; i < ranks; ++i) {
      const int from = (mesh.rank + i) % ranks;
      const int64_t bytes = part(routes.receive_bytes, from, first);
      if (bytes > 0) copy(out + routes.receive_offset[from] + first, lanes(mesh, turn, mesh.rank, from), bytes);
    }
  }
  finish_exchanges(mesh, turn);
}

}  // namespace

void move(const cuda::LaunchContext& context, const Mesh& mesh, const void* in, void* out, const Routes& routes) {
  constexpr int64_t kLeastBytes = 8192;  // 16 bytes per thread
  const int64_t most = static_cast<int64_t>(2 * mesh.layout.lane_bytes());
  const int64_t even = divide_up(divide_up(routes.most_bytes, mesh.layout.blocks), 16) * 16;
  const int64_t chunk = std::clamp(even, kLeastBytes, most);
  const int64_t chunks = std::max<int64_t>(divide_up(routes.most_bytes, chunk), 1);
  const dim3 blocks(static_cast<unsigned>(std::min<int64_t>(chunks, mesh.layout.blocks)));
  cuda::launch(context.stream, move_kernel, blocks, dim3(kThreads), 0, mesh, static_cast<const uint8_t*>(in),
               static_cast<uint8_t*>(out), routes, chunk, chunks);
}

}  // namespace shoal::collectives::p2p
