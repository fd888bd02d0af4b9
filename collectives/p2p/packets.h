// Packets: 16 bytes with 8 bytes of data and the flag in them, for messages so small that a second message with the
// flag, and the wait for the first, would be most of their time. Each half {4 bytes of data, flag} is one 64-bit word,
// which arrives in one piece; a reader that sees both flags has all data. A kernel sends packets once: one step of its
// blocks. Device code.
#pragma once

#include "collectives/p2p/flags.h"
#include "collectives/p2p/wire.h"

namespace shoal::collectives::p2p {

/// Packet `index` of this step, from rank `from`, in the memory of rank `to`.
__device__ inline uint8_t* packet(const Mesh& mesh, const Turn& turn, int to, int from, int index) {
  return mesh.memory[to] + mesh.layout.packets(turn.packets & 1, blockIdx.x, from) + static_cast<size_t>(index) * 16;
}

__device__ inline void send_packet(const Mesh& mesh, const Turn& turn, int to, int index, const uint32_t (&data)[2]) {
  const uint64_t flag = static_cast<uint64_t>(flag_of(mesh, turn.packets)) << 32;
  store_pair(packet(mesh, turn, to, mesh.rank, index), flag | data[0], flag | data[1]);
}
__device__ inline void send_packet_to_all(const Mesh& mesh, const Turn& turn, int index, const uint32_t (&data)[2]) {
  // Each rank begins with its right neighbour, so that not all write to one GPU at a time.
  for (int i = 1; i < mesh.layout.ranks; ++i) {
    const int to = mesh.rank + i;
    send_packet(mesh, turn, to < mesh.layout.ranks ? to : to - mesh.layout.ranks, index, data);
  }
}

/// After the block has sent `count` packets: in some steps it fills the rest too, so that flags do not grow so old that
/// they come again (flag_of()).
__device__ inline void refresh_packets(const Mesh& mesh, const Turn& turn, int count) {
  if (turn.packets % kRefreshSteps >= 2) return;
  const uint32_t nothing[2] = {0, 0};
  for (int i = count + static_cast<int>(threadIdx.x); i < kPackets; i += kThreads) {
    send_packet_to_all(mesh, turn, i, nothing);
  }
}

/// True if the packet is there; its data then.
__device__ inline bool look_at_packet(const Mesh& mesh, const Turn& turn, int from, int index, uint32_t (&data)[2]) {
  uint64_t low, high;
  load_pair(packet(mesh, turn, mesh.rank, from, index), low, high);
  data[0] = static_cast<uint32_t>(low);
  data[1] = static_cast<uint32_t>(high);
  const uint32_t flag = flag_of(mesh, turn.packets);
  return static_cast<uint32_t>(low >> 32) == flag && static_cast<uint32_t>(high >> 32) == flag;
}

/// Which ranks have not sent the packet.
__device__ inline uint32_t missing_packets(const Mesh& mesh, const Turn& turn, int index) {
  uint32_t mask = 0;
  for (int rank = 0; rank < mesh.layout.ranks; ++rank) {
    uint32_t data[2];
    if (rank != mesh.rank && !look_at_packet(mesh, turn, rank, index, data)) mask |= 1u << rank;
  }
  return mask;
}

/// Waits for the packet of all peers and adds them, and the own addend, in rank order. False: failed.
template <class T, class W, int kCount>
__device__ inline bool sum_packets(const Mesh& mesh, const Turn& turn, int index, const Pack<T, kCount>& own,
                                   Pack<T, kCount>& sum) {
  constexpr int kGroup = 4;  // ranks whose packets are on their way together
  const auto missing = [&] { return missing_packets(mesh, turn, index); };
  for (int first = 0; first < mesh.layout.ranks; first += kGroup) {
    uint32_t data[kGroup][2];
    Patience patience;
    while (true) {
      bool all = true;
#pragma unroll
      for (int i = 0; i < kGroup; ++i) {
        const int from = first + i;
        if (from < mesh.layout.ranks && from != mesh.rank) all &= look_at_packet(mesh, turn, from, index, data[i]);
      }
      if (all) break;
      if (patience.is_over(mesh, turn, missing)) return false;
    }
#pragma unroll
    for (int i = 0; i < kGroup; ++i) {
      const int from = first + i;
      if (from >= mesh.layout.ranks) break;
      const Pack<T, kCount> addend = from == mesh.rank ? own : decode<T, W, kCount>(data[i]);
      if (from == 0) {
        sum = addend;
      } else {
        sum.add(addend);
      }
    }
  }
  return true;
}

/// At the end of a kernel that sent packets.
__device__ inline void finish_packets(const Mesh& mesh, const Turn& turn) {
  if (threadIdx.x == 0) state_of(mesh, mesh.rank).steps[blockIdx.x].packets = turn.packets + 1;
}

}  // namespace shoal::collectives::p2p
