// The memory through which the ranks of a P2pCommunicator meet: one block of it on each rank's GPU, written by all
// ranks.
//
//   RankState | packets [parity 2][block][from rank] kPackets x 16   data with flags in it (packets.h)
//             | lanes   [parity 2][block][from rank] 2 x lane_bytes  data of exchanges (flags.h)
//
// Everything is there twice and used in turn (the parity of a block's step): a rank that is one step ahead writes the
// other half. It cannot be two ahead, because in every step every block gets a flag from the same block of all other
// ranks. Blocks of different numbers share nothing, so that a kernel of any number of blocks may follow any other.
#pragma once

#include <cstddef>
#include <cstdint>

namespace shoal::collectives::p2p {

inline constexpr int kMaxRanks = 16;
inline constexpr int kMaxBlocks = 16;  ///< of one rank's kernel
inline constexpr int kThreads = 512;   ///< of a block

/// Bytes that all ranks together may send to one block of one rank in one step, in each of two lanes.
inline constexpr uint32_t kLaneBytesOfBlock = 256 * 1024;
/// Packets that each rank may send to one block of one rank in one step.
inline constexpr int kPackets = 4096;
inline constexpr int kPacketBytes = 16;
inline constexpr int kPacketDataBytes = 8;
/// Every kRefreshSteps steps, in two successive ones, a block fills all its packets, so that no flag in them is older.
inline constexpr uint32_t kRefreshSteps = 1 << 14;

/// What a block has to know when it begins, in one access. The steps that it has made are counted by the kernels
/// themselves, so that a captured kernel goes on where the last ended.
struct alignas(16) BlockState {
  uint32_t failed;      ///< RankState::failed, written to every block's
  uint32_t operations;  ///< begun by this rank; only block 0 counts
  uint32_t exchanges;   ///< steps
  uint32_t packets;     ///< steps
};

struct alignas(256) RankState {  // as cudaMalloc aligns
  uint32_t failed;               ///< set by the first thread of this rank's kernels that gives up
  /// Number of the rank's latest operation and its signature (operations << 32 | signature), for others to read when
  /// they have waited for long, and a word that is not used.
  alignas(16) uint64_t post[2];
  uint32_t finished;  ///< blocks of a kernel that count themselves (product_norm.h); 0 between kernels
  /// For the blocks that finish a row together: {sum of a warp's squares, number of the step + 1}, and an unused word.
  alignas(16) uint64_t squares[kThreads / 32][2];
  BlockState blocks[kMaxBlocks];
  /// [parity][block][from]: signature and number of the step up to which `from` has sent.
  uint32_t flags[2][kMaxBlocks][kMaxRanks];
};

enum class Failure : uint32_t { kNone, kTimeOut, kDisagreement, kAborted };

/// What a rank's kernels say about their failure; in pinned host memory, written once.
struct alignas(64) FailureRecord {
  uint32_t written;  ///< last, released
  Failure failure;
  uint32_t name;             ///< Mesh::name
  uint32_t signature;        ///< Mesh::signature
  uint32_t missing;          ///< bit r: rank r did not come, or disagreed
  uint32_t other_signature;  ///< of the disagreeing rank's operation
  uint64_t waited_ns;
  uint64_t when_ns;  ///< by now_ns()
};

/// Pinned host memory of a communicator, seen by all kernels.
struct HostWords {
  alignas(64) uint32_t abort;  ///< 1: give up; set by the host or by the first kernel that gave up
  FailureRecord records[kMaxRanks];
};

/// Where things lie in a rank's memory. Example: 2 ranks, 16 blocks: 4 KiB + 2 * 16 * 2 * 64 KiB + 2 * 16 * 512 KiB.
/// 48 MiB at most, so that kernels reckon in 32 bits.
struct Layout {
  int ranks;
  int blocks;

  /// Of one lane of one sender.
  constexpr uint32_t lane_bytes() const { return kLaneBytesOfBlock / static_cast<uint32_t>(ranks) / 256 * 256; }
  constexpr uint32_t packets(uint32_t parity, uint32_t block, int from) const {
    return sizeof(RankState) + index(parity, block, from) * (kPackets * kPacketBytes);
  }
  constexpr uint32_t lanes(uint32_t parity, uint32_t block, int from) const {
    return packets(2, 0, 0) + index(parity, block, from) * 2 * lane_bytes();
  }
  constexpr size_t bytes() const { return lanes(2, 0, 0); }

 private:
  constexpr uint32_t index(uint32_t parity, uint32_t block, int from) const {
    return (parity * static_cast<uint32_t>(blocks) + block) * static_cast<uint32_t>(ranks) +
           static_cast<uint32_t>(from);
  }
};

/// What every kernel gets.
struct Mesh {
  uint8_t* memory[kMaxRanks];  ///< of all ranks, laid out as `layout` says
  HostWords* host;
  uint64_t timeout_ns;
  Layout layout;
  int rank;
  bool next_may_start;  ///< at once: it keeps away no block that a kernel of the mesh waits for (BlockShare)
  uint32_t name;        ///< of the tensor, for messages: a number
  uint32_t
      signature;  ///< the same on all ranks that queued the same collective: kind in the upper 8 bits, a hash below
};

}  // namespace shoal::collectives::p2p
