// The memory through which the ranks of a P2pCommunicator communicate. Each rank's GPU has one allocation. All ranks
// write to all allocations. A packet has 16 bytes. A lane is a buffer in which one block receives data from one rank.
//
//   RankState | packets [parity 2][block][from rank] kPackets x 16   data with flags in it (packets.h)
//             | lanes   [parity 2][block][from rank] 2 x lane_bytes  data of exchanges (flags.h)
//
// Packets and lanes exist twice: once for the even steps and once for the odd steps of a block (parity). A rank that is
// one step ahead of another rank therefore does not overwrite data of the current step. A rank cannot be two steps
// ahead: in every step, every block waits for a flag from the block with the same number on each other rank. Blocks
// with different numbers share no memory, so successive kernels may have different numbers of blocks.
#pragma once

#include <cstddef>
#include <cstdint>

namespace shoal::collectives::p2p {

inline constexpr int kMaxRanks = 16;
inline constexpr int kMaxBlocks = 16;  ///< maximum number of blocks per kernel
inline constexpr int kThreads = 512;   ///< number of threads per block

/// Each sender has two lanes to each block of each rank. This constant is the total size in bytes of all senders' first
/// lanes to one block. The second lanes have the same total size.
inline constexpr uint32_t kLaneBytesOfBlock = 256 * 1024;
/// Number of packets that each rank may send to one block of one rank in one step.
inline constexpr int kPackets = 4096;
inline constexpr int kPacketBytes = 16;
inline constexpr int kPacketDataBytes = 8;
/// In two successive steps out of every kRefreshSteps steps, a block sends all its packets, including unused packets.
/// No flag is therefore older than kRefreshSteps steps.
inline constexpr uint32_t kRefreshSteps = 1 << 14;

/// The state that a block reads in one access at its start. The kernels, not the host, count the steps, so that a
/// replayed kernel continues at the step where the previous kernel ended.
struct alignas(16) BlockState {
  uint32_t failed;      ///< copy of RankState::failed; equal in all blocks
  uint32_t operations;  ///< number of operations that this rank has begun; only block 0 uses this member
  uint32_t exchanges;   ///< number of exchange steps
  uint32_t packets;     ///< number of packet steps
};

struct alignas(256) RankState {  // cudaMalloc also aligns memory to 256 bytes
  uint32_t failed;               ///< 1 after a thread of this rank has stopped waiting because of a failure
  /// post[0] is the rank's latest operation, as number << 32 | signature. post[1] is unused. Other ranks read `post`
  /// only after a long wait.
  alignas(16) uint64_t post[2];
  uint32_t finished;  ///< number of finished blocks of the running kernel (product_norm.h); 0 between kernels
  /// If several blocks compute the norm of one row, they exchange their sums of squares through this array. Each warp
  /// has an entry {sum of squares, step number + 1} and an unused word.
  alignas(16) uint64_t squares[kThreads / 32][2];
  BlockState blocks[kMaxBlocks];
  /// The indices are [parity][block][from]. A flag combines the signature and the number of the latest step in which
  /// rank `from` has sent its data.
  uint32_t flags[2][kMaxBlocks][kMaxRanks];
};

enum class Failure : uint32_t { kNone, kTimeOut, kDisagreement, kAborted };

/// A rank's failure. The rank's kernels write this record once. The record is in pinned host memory.
struct alignas(64) FailureRecord {
  uint32_t written;  ///< 1 after all other members are written (release order)
  Failure failure;
  uint32_t name;             ///< value of Mesh::name
  uint32_t signature;        ///< value of Mesh::signature
  uint32_t missing;          ///< bit r: rank r did not arrive or queued a different operation
  uint32_t other_signature;  ///< signature of the different operation
  uint64_t waited_ns;
  uint64_t when_ns;  ///< time of the failure, from now_ns()
};

/// Pinned host memory that all kernels of a communicator can access.
struct HostWords {
  alignas(64) uint32_t abort;  ///< 1: all ranks must stop waiting; set by the host or by the first kernel that fails
  FailureRecord records[kMaxRanks];
};

/// Offsets in bytes in a rank's memory. Example with 2 ranks and 16 blocks: 2.75 KiB for RankState + 2 * 16 * 2 * 64
/// KiB for packets + 2 * 16 * 512 KiB for lanes. The memory has at most 48 MiB, so kernels use 32-bit offsets.
struct Layout {
  int ranks;
  int blocks;

  /// Size in bytes of one lane. Each sender has two lanes of this size.
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

/// The kernel argument that describes the communicator.
struct Mesh {
  uint8_t* memory[kMaxRanks];  ///< memory of each rank; `layout` gives the offsets
  HostWords* host;
  uint64_t timeout_ns;
  Layout layout;
  int rank;
  bool next_may_start;  ///< whether the next kernel may start early; an early start must not delay a block that the
                        ///< mesh waits for (BlockShare)
  uint32_t name;        ///< index of the tensor's name, for messages
  uint32_t signature;   ///< kind of the collective in the upper 8 bits, a hash in the lower bits; equal on all ranks
                        ///< that queued the same collective
};

}  // namespace shoal::collectives::p2p
