// One-shot all_reduce: every rank sends its data to all others in packets, and each adds what it got. One latency, and
// (n - 1) * 2 * S bytes out of every rank: for small messages.
#include <algorithm>

#include "collectives/p2p/dispatch.h"
#include "collectives/p2p/kernels.h"
#include "collectives/p2p/packets.h"

namespace shoal::collectives::p2p {
namespace {

/// Every block sends and sums `per_block` packets, the last one fewer, but none nothing: each block must hear from its
/// peers in each step.
template <class T, class W>
__global__ void __launch_bounds__(kThreads, 1)
    one_shot_kernel(Mesh mesh, const T* in, T* out, int64_t count, int per_block) {
  constexpr int kCount = kElements<W, kPacketDataBytes>;
  Turn turn;
  if (!begin(mesh, turn)) return;
  const Array<const T> source(in);
  const Array<T> target(out);
  const int64_t first = static_cast<int64_t>(blockIdx.x) * per_block;
  const int64_t all = (count + kCount - 1) / kCount;
  const int packets = static_cast<int>(all - first < per_block ? all - first : per_block);
  for (int i = static_cast<int>(threadIdx.x); i < packets; i += kThreads) {
    uint32_t data[2];
    encode<W>(source.template load<kCount>((first + i) * kCount, count), data);
    send_packet_to_all(mesh, turn, i, data);
  }
  refresh_packets(mesh, turn, packets);
  for (int i = static_cast<int>(threadIdx.x); i < packets; i += kThreads) {
    Pack<T, kCount> own = source.template load<kCount>((first + i) * kCount, count);
    round_to_wire<W>(own);
    Pack<T, kCount> sum;
    if (!sum_packets<T, W>(mesh, turn, i, own, sum)) return;
    // So that the result is that of the two-shot form, whose results travel too.
    round_to_wire<W>(sum);
    target.store((first + i) * kCount, count, sum);
  }
  finish_packets(mesh, turn);
}

}  // namespace

void all_reduce_one_shot(cudaStream_t stream, const Mesh& mesh, const Reduction& reduction, int64_t count) {
  with_types(reduction.element, [&]<class T, class W>(Types<T, W>) {
    const int64_t packets = divide_up(count, kElements<W, kPacketDataBytes>);
    const int64_t wanted = std::min<int64_t>(divide_up(packets, kThreads), mesh.layout.blocks);
    const int64_t per_block = divide_up(packets, wanted);
    const dim3 blocks(static_cast<unsigned>(divide_up(packets, per_block)));
    cuda::launch(stream, one_shot_kernel<T, W>, blocks, dim3(kThreads), 0, mesh, static_cast<const T*>(reduction.in),
                 static_cast<T*>(reduction.out), count, static_cast<int>(per_block));
  });
}

cudaError_t load_all_reduce_one_shot() {
  cudaError_t status = cudaSuccess;
  for (Element element : kElementTypes) {
    with_types(element, [&]<class T, class W>(Types<T, W>) { load_kernel(one_shot_kernel<T, W>, status); });
  }
  return status;
}

}  // namespace shoal::collectives::p2p
