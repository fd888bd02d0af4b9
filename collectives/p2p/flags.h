// Synchronizes the blocks with the same block number on all ranks. Device code. If a function's comment says "the
// block", all threads of the block must call the function.
//
//   Turn turn;
//   if (!begin(mesh, turn)) return;                        // the rank has already failed
//   for (...; ++turn.exchanges) {
//     ... write into lanes(mesh, turn, peer, mesh.rank) ...
//     if (!exchange(mesh, turn)) return;                   // now the rank's lanes hold all peers' data of this step
//     ... read lanes(mesh, turn, mesh.rank, peer) ...
//   }
//   finish_exchanges(mesh, turn);
//
// docs/p2p.md explains why this protocol is correct under CUDA's memory model, and why two copies of the memory (for
// even and odd steps) suffice.
#pragma once

#include "collectives/p2p/slots.h"
#include "devices/cuda/kernels/platform.h"

namespace shoal::collectives::p2p {

using cuda::load_acquire;
using cuda::load_pair;
using cuda::now_ns;
using cuda::spin_pause;
using cuda::store_pair;
using cuda::store_release;

/// The numbers of a block's current steps. Exchange steps and packet steps are counted separately.
struct Turn {
  uint32_t exchanges;
  uint32_t packets;
  uint32_t operations;  ///< in block 0: number of the rank's operation; in all other blocks: 0
  uint32_t block;       ///< number of the block that owns the packets and counters
  uint32_t thread;      ///< number of the thread that owns the packets
};

/// A kernel calls this function at its start. If the mesh permits early starts, the next kernel may then start.
__device__ inline void let_next_start(const Mesh& mesh) {
  if (mesh.next_may_start) cuda::let_next_start();
}

__device__ inline RankState& state_of(const Mesh& mesh, int rank) {
  return *reinterpret_cast<RankState*>(mesh.memory[rank]);
}

/// Combines the signature and the number of a step in one word. Step numbers repeat after 65,536 steps, but every flag
/// is overwritten before its step number repeats. Exchange flags are written in every second step; packet flags are
/// refreshed (refresh_packets).
__device__ inline uint32_t flag_of(const Mesh& mesh, uint32_t step) {
  return (mesh.signature << 16) | (step & 0xffff);
}

/// Reads in one access the counters that the rank's previous kernel stored for a block.
__device__ inline BlockState load_state(const Mesh& mesh, uint32_t block) {
  uint64_t words[2];
  load_pair(&state_of(mesh, mesh.rank).blocks[block], words[0], words[1]);
  BlockState state;
  memcpy(&state, words, sizeof state);
  return state;
}
/// Publishes that this rank begins operation `number`. Only one thread of the rank calls this function.
__device__ inline void post_operation(const Mesh& mesh, uint32_t number) {
  RankState& state = state_of(mesh, mesh.rank);
  state.blocks[0].operations = number;
  store_pair(state.post, static_cast<uint64_t>(number) << 32 | mesh.signature, 0);
}

/// Begins the block's part of an operation and sets `turn`. Returns false if the block's rank has failed. Loads that
/// the block has started before this call may still be in flight after the call.
__device__ inline bool begin(const Mesh& mesh, Turn& turn) {
  __shared__ BlockState shared;
  if (threadIdx.x == 0) {
    shared = load_state(mesh, blockIdx.x);
    if (blockIdx.x == 0) post_operation(mesh, ++shared.operations);
  }
  __syncthreads();
  turn = {shared.exchanges, shared.packets, shared.operations, blockIdx.x, threadIdx.x};
  return shared.failed == 0;
}

/// Records the rank's first failure for the host and makes all ranks stop waiting. Does nothing after an earlier
/// failure of this rank.
__device__ inline void give_up(const Mesh& mesh, Failure failure, uint32_t missing, uint32_t other_signature,
                               uint64_t waited_ns) {
  RankState& state = state_of(mesh, mesh.rank);
  if (atomicExch(&state.failed, 1u) != 0) return;
  for (BlockState& block : state.blocks) atomicExch(&block.failed, 1u);
  FailureRecord& record = mesh.host->records[mesh.rank];
  record.failure = failure;
  record.name = mesh.name;
  record.signature = mesh.signature;
  record.missing = missing;
  record.other_signature = other_signature;
  record.waited_ns = waited_ns;
  record.when_ns = now_ns();
  store_release(&record.written, 1);
  if (failure != Failure::kAborted) store_release(&mesh.host->abort, 1);
}

/// Limits the wait of one thread. Call is_over() after each unsuccessful poll:
///   if (patience.is_over(mesh, turn, who_is_missing)) return false;
class Patience {
 public:
  /// Pauses briefly. If the wait must end, records the reason and returns true. `missing()` returns a bit mask of the
  /// missing ranks.
  template <class Missing>
  __device__ bool is_over(const Mesh& mesh, const Turn& turn, const Missing& missing) {
    spin_pause();
    if (++looks_ % kLooksPerClock != 0) return false;
    const uint64_t now = now_ns();
    if (start_ == 0) start_ = checked_ = now;
    if (now - start_ >= mesh.timeout_ns) {
      give_up(mesh, Failure::kTimeOut, missing(), 0, now - start_);
      return true;
    }
    if (now - checked_ < kCheckNs) return false;
    checked_ = now;
    // Loads from host memory and from the peers' posts have a high latency, so a waiting thread repeats these loads
    // only every kCheckNs nanoseconds.
    if (load_acquire(&mesh.host->abort) != 0) {
      give_up(mesh, Failure::kAborted, 0, 0, now - start_);
      return true;
    }
    return finds_disagreement(mesh, turn, missing(), now - start_);
  }

 private:
  static constexpr uint32_t kLooksPerClock = 64;
  static constexpr uint64_t kCheckNs = 100'000;

  /// Returns true if a missing rank has begun a different operation. That operation has the same number as this rank's
  /// operation, but another signature.
  __device__ static bool finds_disagreement(const Mesh& mesh, const Turn& turn, uint32_t missing, uint64_t waited_ns) {
    if (turn.operations == 0) return false;
#pragma unroll 1
    for (int rank = 0; rank < mesh.layout.ranks; ++rank) {
      if ((missing >> rank & 1) == 0) continue;
      uint64_t post, unused;
      load_pair(state_of(mesh, rank).post, post, unused);
      if (post >> 32 != turn.operations || static_cast<uint32_t>(post) == mesh.signature) continue;
      give_up(mesh, Failure::kDisagreement, 1u << rank, static_cast<uint32_t>(post), waited_ns);
      return true;
    }
    return false;
  }

  uint64_t start_ = 0;
  uint64_t checked_ = 0;
  uint32_t looks_ = 0;
};

/// The lanes (slots.h) that rank `from` writes in this step (2 * lane_bytes() bytes). The lanes are in the memory of
/// rank `to`. `ahead`: 0 for this step, 1 for the next step.
__device__ inline uint8_t* lanes(const Mesh& mesh, const Turn& turn, int to, int from, uint32_t ahead = 0) {
  return mesh.memory[to] + mesh.layout.lanes((turn.exchanges + ahead) & 1, blockIdx.x, from);
}

/// Waits for the flag that rank `from` writes in this step. Returns false after a failure.
__device__ inline bool wait_for(const Mesh& mesh, const Turn& turn, int from) {
  const uint32_t expected = flag_of(mesh, turn.exchanges);
  const uint32_t* flags = state_of(mesh, mesh.rank).flags[turn.exchanges & 1][blockIdx.x];
  const auto missing = [&] {
    uint32_t mask = 0;
    for (int rank = 0; rank < mesh.layout.ranks; ++rank) {
      if (rank != mesh.rank && load_acquire(&flags[rank]) != expected) mask |= 1u << rank;
    }
    return mask;
  };
  Patience patience;
  while (load_acquire(&flags[from]) != expected) {
    if (patience.is_over(mesh, turn, missing)) return false;
  }
  return true;
}

/// Notifies all peers that the block has sent its data of this step, and waits for the notifications of all peers.
/// After exchange(), the block may read its own lanes and write into the peers' lanes of the next step. Returns false
/// after a failure; the block must then return.
__device__ inline bool exchange(const Mesh& mesh, const Turn& turn) {
  const int peer = static_cast<int>(threadIdx.x);
  __shared__ int arrived[kMaxRanks];
  __syncthreads();
  if (peer < mesh.layout.ranks) {
    bool is_there = true;
    if (peer != mesh.rank) {
      store_release(&state_of(mesh, peer).flags[turn.exchanges & 1][blockIdx.x][mesh.rank],
                    flag_of(mesh, turn.exchanges));
      is_there = wait_for(mesh, turn, peer);
    }
    arrived[peer] = is_there;
  }
  __syncthreads();
  bool all = true;
  for (int rank = 0; rank < mesh.layout.ranks; ++rank) all &= arrived[rank] != 0;
  return all;
}

/// A kernel with exchanges calls this function at its end, so that the next kernel continues from this step.
__device__ inline void finish_exchanges(const Mesh& mesh, const Turn& turn) {
  if (threadIdx.x == 0) state_of(mesh, mesh.rank).blocks[blockIdx.x].exchanges = turn.exchanges;
}

}  // namespace shoal::collectives::p2p
