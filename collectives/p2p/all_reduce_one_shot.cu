// One-shot all_reduce: every rank sends its data in packets to all other ranks and sums the packets that it receives.
// One-shot all_reduce takes one link latency, but every rank sends (n - 1) * 2 * S bytes (n: ranks, S: message size).
// One-shot all_reduce is therefore used for small messages.
#include <algorithm>

#include "collectives/p2p/dispatch.h"
#include "collectives/p2p/kernels.h"
#include "collectives/p2p/packets.h"

namespace shoal::collectives::p2p {
namespace {

/// kPackOf: number of elements in a pack, which a thread loads with one 16-byte access. kSlotsOfPack: number of packets
/// that a pack fills.
template <class T>
constexpr int kPackOf = kElements<T, 16>;
template <class T, class W>
constexpr int kSlotsOfPack = kPackOf<T>* static_cast<int>(sizeof(W)) / kPacketDataBytes;
template <class T, class W>
constexpr int kMostPacks = kMostSlots / kSlotsOfPack<T, W>;

/// Every block sends and sums `per_block` packs; the last block may have fewer packs. Every block has at least one
/// pack, because it must receive data from its peers in every step. A thread processes at most kPacks packs.
template <class T, class W, int kPacks>
__global__ void __launch_bounds__(kThreads, 1)
    one_shot_kernel(Mesh mesh, const T* in, T* out, int64_t count, int per_block) {
  let_next_start(mesh);
  constexpr int kCount = kPackOf<T>, kSlots = kPacks * kSlotsOfPack<T, W>;
  const int64_t first = static_cast<int64_t>(blockIdx.x) * per_block;
  const int64_t left = (count + kCount - 1) / kCount - first;
  const int packs = static_cast<int>(left < per_block ? left : per_block) - static_cast<int>(threadIdx.x);
  const int slots = packs <= 0 ? 0 : (packs + kThreads - 1) / kThreads * kSlotsOfPack<T, W>;
  const auto place = [&](int i) { return (first + i * kThreads + static_cast<int>(threadIdx.x)) * kCount; };
  const auto is_own = [&](int i) { return i * kThreads < packs; };

  cuda::wait_for_previous();
  const Array<const T> source(in);
  Pack<T, kCount> own[kPacks] = {};
#pragma unroll
  for (int i = 0; i < kPacks; ++i) {
    if (is_own(i)) own[i] = source.template load<kCount>(place(i), count);
  }
  Turn turn;
  if (!begin(mesh, turn)) return;
  uint32_t words[kSlots][2];
#pragma unroll
  for (int i = 0; i < kPacks; ++i) encode_packets<W>(own[i], words, i);
  send_packets(mesh, turn, words, slots);
  const Array<T> target(out);
  const bool received = sum_packets<T, W, kCount>(mesh, turn, words, slots, [&](int i, Pack<T, kCount> sum) {
    // Rounds the sum to the wire type. The two-shot all_reduce sends its sums in this type, so one-shot and two-shot
    // give the same result.
    round_to_wire<W>(sum);
    if (is_own(i)) target.store(place(i), count, sum);
  });
  if (!received) return;
  finish_packets(mesh, turn);
}

}  // namespace

void all_reduce_one_shot(const cuda::LaunchContext& context, const Mesh& mesh, const Reduction& reduction,
                         int64_t count) {
  with_types(reduction.element, [&]<class T, class W>(Types<T, W>) {
    const int64_t packs = divide_up(count, kPackOf<T>);
    const int64_t wanted = std::min<int64_t>(divide_up(packs, kThreads), mesh.layout.blocks);
    const int64_t per_block = divide_up(packs, wanted);
    const dim3 blocks(static_cast<unsigned>(divide_up(packs, per_block)));
    const auto kernel = per_block <= kThreads ? one_shot_kernel<T, W, 1> : one_shot_kernel<T, W, kMostPacks<T, W>>;
    cuda::launch_early(context, kernel, blocks, dim3(kThreads), 0, mesh, static_cast<const T*>(reduction.in),
                       static_cast<T*>(reduction.out), count, static_cast<int>(per_block));
  });
}

}  // namespace shoal::collectives::p2p
