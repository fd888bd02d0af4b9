// Sends small messages in packets. Each packet contains its own flags. With such packets, a block waits neither for the
// visibility of its stores nor for a separate flag. These two waits would dominate the time of a small message. Each
// half {4 bytes of data, flag} of a packet is one 64-bit word and arrives atomically. A reader that sees both flags has
// all data of the packet. In each kernel, a block sends packets in only one step. Packet `slot` of a thread has number
// slot * kThreads + threadIdx.x in its block, so the packets of a warp are adjacent. A thread keeps its packets in
// registers, sends all of them, and then polls all peers' packets together, so that the latencies overlap. Device code.
//
//   uint32_t words[kSlots][2];                                // encode before begin(), so that loads overlap begin()
//   send_packets(mesh, turn, words, count);
//   if (!sum_packets<T, W, kCount>(mesh, turn, words, count, take)) ...   // failed
//   finish_packets(mesh, turn);
#pragma once

#include "collectives/p2p/flags.h"
#include "collectives/p2p/wire.h"

namespace shoal::collectives::p2p {

/// Maximum number of packets per thread and step.
inline constexpr int kMostSlots = kPackets / kThreads;
static_assert(kPackets % kThreads == 0);

/// The packets that one thread (Turn::thread) of rank `from` sends in one step to the memory of rank `to`.
struct Packets {
  uint8_t* first;

  __device__ Packets(const Mesh& mesh, const Turn& turn, int to, int from)
      : first(mesh.memory[to] + mesh.layout.packets(turn.packets & 1, turn.block, from) + turn.thread * kPacketBytes) {}
  __device__ uint8_t* operator[](int slot) const { return first + slot * (kThreads * kPacketBytes); }
};

/// Sends one packet. A kernel may send a packet as soon as the packet's data are computed.
__device__ inline void send_packet(uint8_t* packet, uint32_t flag, const uint32_t (&data)[2]) {
  const uint64_t upper = static_cast<uint64_t>(flag) << 32;
  store_pair(packet, upper | data[0], upper | data[1]);
}

/// Encodes pack number `index` of the thread. Stores the encoded data in the elements of `words` that belong to the
/// packets of this pack.
template <class W, class T, int kCount, int kSlots>
__device__ inline void encode_packets(const Pack<T, kCount>& pack, uint32_t (&words)[kSlots][2], int index) {
  constexpr int kWords = kCount * static_cast<int>(sizeof(W)) / 4;
  uint32_t encoded[kWords];
  encode<W>(pack, encoded);
#pragma unroll
  for (int word = 0; word < kWords; ++word) words[index * kWords / 2 + word / 2][word % 2] = encoded[word];
}

/// Calls send(Packets) for each peer. Each rank begins with the next higher rank (cyclically), so that not all ranks
/// write to one GPU at the same time.
template <class Send>
__device__ inline void for_each_peer(const Mesh& mesh, const Turn& turn, const Send& send) {
#pragma unroll 1
  for (int i = 1; i < mesh.layout.ranks; ++i) {
    const int to = mesh.rank + i;
    send(Packets(mesh, turn, to < mesh.layout.ranks ? to : to - mesh.layout.ranks, mesh.rank));
  }
}

/// In two of every kRefreshSteps steps, sends the thread's unused packets with zeros as data, so that old flags cannot
/// match again (flag_of()). The unused packets to a peer start at slot `count`. The unused packets to this rank itself
/// start at slot `own`.
__device__ inline void refresh_packets(const Mesh& mesh, const Turn& turn, int count, int own) {
  if (turn.packets % kRefreshSteps >= 2) return;
  const uint32_t flag = flag_of(mesh, turn.packets);
#pragma unroll 1
  for (int to = 0; to < mesh.layout.ranks; ++to) {
    const Packets packets(mesh, turn, to, mesh.rank);
#pragma unroll 1
    for (int slot = to == mesh.rank ? own : count; slot < kMostSlots; ++slot) send_packet(packets[slot], flag, {0, 0});
  }
}

/// Sends the thread's first `count` packets to all peers, and refreshes the unused packets.
template <int kSlots>
__device__ inline void send_packets(const Mesh& mesh, const Turn& turn, const uint32_t (&words)[kSlots][2], int count) {
  const uint32_t flag = flag_of(mesh, turn.packets);
  for_each_peer(mesh, turn, [&](const Packets& packets) {
#pragma unroll
    for (int slot = 0; slot < kSlots; ++slot) {
      if (slot < count) send_packet(packets[slot], flag, words[slot]);
    }
  });
  refresh_packets(mesh, turn, count, 0);
}

/// Bit mask of the ranks whose packets the thread has not completely received.
__device__ inline uint32_t missing_packets(const Mesh& mesh, const Turn& turn, int count) {
  const uint32_t flag = flag_of(mesh, turn.packets);
  uint32_t mask = 0;
#pragma unroll 1
  for (int rank = 0; rank < mesh.layout.ranks; ++rank) {
    const Packets packets(mesh, turn, mesh.rank, rank);
#pragma unroll 1
    for (int slot = 0; slot < count && rank != mesh.rank; ++slot) {
      uint64_t low, high;
      load_pair(packets[slot], low, high);
      if (low >> 32 != flag || high >> 32 != flag) mask |= 1u << rank;
    }
  }
  return mask;
}

/// Receives kSlots of the thread's packets from each of kRanks ranks. Ignores packets that do not exist.
template <int kRanks, int kSlots>
struct Arrivals {
  uint64_t halves[kRanks][kSlots][2];

  /// Waits for packets from the ranks [first, first + kRanks), except from rank `skipped`. Waits only for packets in
  /// the slots [first_slot, first_slot + kSlots), and only for slots less than `count`. Returns false after a failure.
  __device__ bool wait(const Mesh& mesh, const Turn& turn, int first, int first_slot, int count, int skipped) {
    const uint32_t flag = flag_of(mesh, turn.packets);
    for_all([&](uint64_t& half) { half = static_cast<uint64_t>(flag) << 32; });
    Patience patience;
    while (true) {
      look(mesh, turn, first, first_slot, count, skipped);
      uint32_t differences = 0;
      for_all([&](uint64_t half) { differences |= static_cast<uint32_t>(half >> 32) ^ flag; });
      if (differences == 0) return true;
      if (patience.is_over(mesh, turn, [&] { return missing_packets(mesh, turn, count); })) return false;
    }
  }

 private:
  template <class Function>
  __device__ void for_all(const Function& function) {
#pragma unroll
    for (int i = 0; i < kRanks; ++i) {
#pragma unroll
      for (int slot = 0; slot < kSlots; ++slot) function(halves[i][slot][0]), function(halves[i][slot][1]);
    }
  }
  /// Issues all loads before it uses any loaded value.
  __device__ void look(const Mesh& mesh, const Turn& turn, int first, int first_slot, int count, int skipped) {
#pragma unroll
    for (int i = 0; i < kRanks; ++i) {
      const int from = first + i;
      if (from >= mesh.layout.ranks || from == skipped) continue;
      const Packets packets(mesh, turn, mesh.rank, from);
#pragma unroll
      for (int slot = 0; slot < kSlots; ++slot) {
        if (first_slot + slot < count) load_pair(packets[first_slot + slot], halves[i][slot][0], halves[i][slot][1]);
      }
    }
  }
};

/// Waits for the packets of kPacks packs, starting at slot `first_slot`, and sums the packs in rank order. Processes
/// kRanks ranks at a time. Only slots less than `count` exist. own(slot, word) replaces the packets of rank `skipped`.
/// Returns false after a failure.
template <class T, class W, int kCount, int kRanks, int kPacks, class Own>
__device__ inline bool sum_arrivals(const Mesh& mesh, const Turn& turn, int first_slot, int count, int skipped,
                                    Pack<T, kCount> (&sums)[kPacks], const Own& own) {
  constexpr int kSlotsOfPack = kCount * static_cast<int>(sizeof(W)) / kPacketDataBytes;
#pragma unroll 1
  for (int first = 0; first < mesh.layout.ranks; first += kRanks) {
    Arrivals<kRanks, kPacks * kSlotsOfPack> arrivals;
    if (!arrivals.wait(mesh, turn, first, first_slot, count, skipped)) return false;
#pragma unroll
    for (int i = 0; i < kRanks; ++i) {
      const int from = first + i;
      if (from >= mesh.layout.ranks) break;
#pragma unroll
      for (int pack = 0; pack < kPacks; ++pack) {
        uint32_t addend[kSlotsOfPack * 2];
#pragma unroll
        for (int word = 0; word < kSlotsOfPack * 2; ++word) {
          const int slot = pack * kSlotsOfPack + word / 2;
          addend[word] =
              from == skipped ? own(slot, word % 2) : static_cast<uint32_t>(arrivals.halves[i][slot][word % 2]);
        }
        const Pack<T, kCount> decoded = decode<T, W, kCount>(addend);
        if (from == 0) {
          sums[pack] = decoded;
        } else {
          sums[pack].add(decoded);
        }
      }
    }
  }
  return true;
}

/// Waits for the thread's first `count` packets of all peers. Sums these packets and the thread's own packets `words`
/// in rank order. Calls take(i, sum) for each pack i >= kPack. Each iteration processes as many packs as fit into
/// registers. Returns false after a failure.
template <class T, class W, int kCount, int kPack = 0, int kSlots, class Take>
__device__ inline bool sum_packets(const Mesh& mesh, const Turn& turn, const uint32_t (&words)[kSlots][2], int count,
                                   const Take& take) {
  constexpr int kSlotsOfPack = kCount * static_cast<int>(sizeof(W)) / kPacketDataBytes;
  constexpr int kSlotsTogether = kSlots < 4 ? kSlots : 4, kRanks = 8 / kSlotsTogether;
  constexpr int kFirst = kPack * kSlotsOfPack, kPacks = kSlotsTogether / kSlotsOfPack;
  Pack<T, kCount> sums[kPacks] = {};
  const auto own = [&](int slot, int word) { return words[kFirst + slot][word]; };
  if (!sum_arrivals<T, W, kCount, kRanks>(mesh, turn, kFirst, count, mesh.rank, sums, own)) return false;
#pragma unroll
  for (int pack = 0; pack < kPacks; ++pack) take(kPack + pack, sums[pack]);
  if constexpr (kFirst + kSlotsTogether < kSlots) {
    return sum_packets<T, W, kCount, kPack + kPacks>(mesh, turn, words, count, take);
  } else {
    return true;
  }
}

/// A kernel that sent packets calls this function at its end.
__device__ inline void finish_packets(const Mesh& mesh, const Turn& turn) {
  if (threadIdx.x == 0) state_of(mesh, mesh.rank).blocks[turn.block].packets = turn.packets + 1;
}

}  // namespace shoal::collectives::p2p
