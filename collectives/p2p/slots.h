// The memory through which the ranks of a P2pCommunicator communicate: one allocation on each rank's GPU, written by
// all ranks.
//
//   RankState | packets [parity 2][block][from rank] kPackets x 16   data with flags in it (packets.h)
//             | lanes   [parity 2][block][from rank] 2 x lane_bytes  data of exchanges (flags.h)
//
// Packets and lanes exist twice, for even and odd steps of a block (parity), so a rank that is one step ahead does not
// overwrite data of the current step. A rank cannot be two steps ahead, because in every step every block gets a flag
// from the same block of all other ranks. Blocks with different numbers share no memory, so successive kernels may have
// different numbers of blocks.
#pragma once

#include <cstddef>
#include <cstdint>

namespace shoal::collectives::p2p {

inline constexpr int kMaxRanks = 16;
inline constexpr int kMaxBlocks = 16;  ///< maximum number of blocks per kernel
inline constexpr int kThreads = 512;   ///< number of threads per block

/// Total size in bytes of the first lanes of all senders to one block. The second lanes have the same total size.
inline constexpr uint32_t kLaneBytesOfBlock = 256 * 1024;
/// Number of packets that each rank may send to one block of one rank in one step.
inline constexpr int kPackets = 4096;
inline constexpr int kPacketBytes = 16;
inline constexpr int kPacketDataBytes = 8;
/// In two successive steps out of every kRefreshSteps, a block sends all its packets, even unused ones, so that no flag
/// is older than kRefreshSteps steps.
inline constexpr uint32_t kRefreshSteps = 1 << 14;

/// The state that a block reads in one access when it begins. The kernels, not the host, count the steps, so that a
/// replayed kernel continues where the previous kernel ended.
struct alignas(16) BlockState {
  uint32_t failed;      ///< copy of RankState::failed in every block
  uint32_t operations;  ///< operations begun by this rank; used in block 0 only
  uint32_t exchanges;   ///< number of exchange steps
  uint32_t packets;     ///< number of packet steps
};

struct alignas(256) RankState {  // alignment of cudaMalloc
  uint32_t failed;               ///< set by the first thread of this rank that gives up
  /// The rank's latest operation: (number << 32 | signature), and an unused word. Other ranks read it only after a long
  /// wait.
  alignas(16) uint64_t post[2];
  uint32_t finished;  ///< number of finished blocks of the running kernel (product_norm.h); 0 between kernels
  /// For blocks that finish a row together: per warp, {sum of squares, step number + 1} and an unused word.
  alignas(16) uint64_t squares[kThreads / 32][2];
  BlockState blocks[kMaxBlocks];
  /// [parity][block][from]: signature and number of the latest step for which `from` has sent its data.
  uint32_t flags[2][kMaxBlocks][kMaxRanks];
};

enum class Failure : uint32_t { kNone, kTimeOut, kDisagreement, kAborted };

/// A rank's failure, as recorded by its kernels. In pinned host memory, written once.
struct alignas(64) FailureRecord {
  uint32_t written;  ///< set last, with release order
  Failure failure;
  uint32_t name;             ///< Mesh::name
  uint32_t signature;        ///< Mesh::signature
  uint32_t missing;          ///< bit r: rank r did not arrive, or disagreed
  uint32_t other_signature;  ///< signature of the disagreeing rank's operation
  uint64_t waited_ns;
  uint64_t when_ns;  ///< time of now_ns()
};

/// Pinned host memory of a communicator, visible to all kernels.
struct HostWords {
  alignas(64) uint32_t abort;  ///< 1: give up; set by the host or by the first kernel that gives up
  FailureRecord records[kMaxRanks];
};

/// Offsets in a rank's memory. Example: 2 ranks, 16 blocks: 4 KiB + 2 * 16 * 2 * 64 KiB + 2 * 16 * 512 KiB. The memory
/// has at most 48 MiB, so kernels use 32-bit offsets.
struct Layout {
  int ranks;
  int blocks;

  /// Bytes of each of a sender's two lanes.
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
  uint8_t* memory[kMaxRanks];  ///< memory of each rank, with offsets as in `layout`
  HostWords* host;
  uint64_t timeout_ns;
  Layout layout;
  int rank;
  bool next_may_start;  ///< whether the next kernel may start early without delaying a block that the mesh waits for
                        ///< (BlockShare)
  uint32_t name;        ///< index of the tensor's name, for messages
  uint32_t signature;   ///< kind in the upper 8 bits, a hash in the lower bits; equal on all ranks that queued the same
                        ///< collective
};

}  // namespace shoal::collectives::p2p
