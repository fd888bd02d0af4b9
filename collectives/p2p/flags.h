// How blocks of the same number on all ranks meet. Device code; every function that says "the block" is called by all
// its threads.
//
//   Turn turn;
//   if (!begin(mesh, turn)) return;                        // the rank has failed before
//   for (...; ++turn.exchanges) {
//     ... write into lanes(mesh, turn, peer, mesh.rank) ...
//     if (!exchange(mesh, turn)) return;                   // now all peers' data of this step are in the own lanes
//     ... read lanes(mesh, turn, mesh.rank, peer) ...
//   }
//   finish_exchanges(mesh, turn);
//
// Why this is right under CUDA's memory model, and why two parities are enough: docs/p2p.md.
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

/// A block's place in the sequence of its steps.
struct Turn {
  uint32_t exchanges;
  uint32_t packets;
  uint32_t operations;  ///< of the rank; in block 0 only, 0 elsewhere
  uint32_t block;       ///< whose packets and counters these are
  uint32_t thread;      ///< whose packets these are
};

/// At the top of a kernel.
__device__ inline void let_next_start(const Mesh& mesh) {
  if (mesh.next_may_start) cuda::let_next_start();
}

__device__ inline RankState& state_of(const Mesh& mesh, int rank) {
  return *reinterpret_cast<RankState*>(mesh.memory[rank]);
}

/// Signature and number of a step in one word. A step's number is equal to that of another one 65,536 steps later, but
/// no flag stays for so long: those of exchanges are written in every second step, those of packets refreshed.
__device__ inline uint32_t flag_of(const Mesh& mesh, uint32_t step) {
  return (mesh.signature << 16) | (step & 0xffff);
}

/// What the last kernel of this rank has left of a block's counters, in one access.
__device__ inline BlockState load_state(const Mesh& mesh, uint32_t block) {
  uint64_t words[2];
  load_pair(&state_of(mesh, mesh.rank).blocks[block], words[0], words[1]);
  BlockState state;
  memcpy(&state, words, sizeof state);
  return state;
}
/// One thread's: says that this rank begins its operation of this number.
__device__ inline void post_operation(const Mesh& mesh, uint32_t number) {
  RankState& state = state_of(mesh, mesh.rank);
  state.blocks[0].operations = number;
  store_pair(state.post, static_cast<uint64_t>(number) << 32 | mesh.signature, 0);
}

/// Has the block's rank not failed yet? Then the block's turn. Loads that come before this are on their way meanwhile.
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

/// Notes the failure for the host and lets all ranks give up, if this is the rank's first failure.
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

/// One thread's waiting. After each look that was in vain:
///   if (patience.is_over(mesh, turn, who_is_missing)) return false;
class Patience {
 public:
  /// Pauses; true once the wait must end, which is then noted. `missing()`: the ranks that have not come, as bits.
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
    // Host memory and peers' posts are far away: looked at now and then.
    if (load_acquire(&mesh.host->abort) != 0) {
      give_up(mesh, Failure::kAborted, 0, 0, now - start_);
      return true;
    }
    return finds_disagreement(mesh, turn, missing(), now - start_);
  }

 private:
  static constexpr uint32_t kLooksPerClock = 64;
  static constexpr uint64_t kCheckNs = 100'000;

  /// Has a rank for which we wait begun the operation of our number, but another one?
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

/// The lanes of rank `to` into which rank `from` sends in this step; 2 * lane_bytes(). `ahead`: those of later steps.
__device__ inline uint8_t* lanes(const Mesh& mesh, const Turn& turn, int to, int from, uint32_t ahead = 0) {
  return mesh.memory[to] + mesh.layout.lanes((turn.exchanges + ahead) & 1, blockIdx.x, from);
}

/// Waits for rank `from`'s flag of this step.
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

/// Tells all peers that the block has sent what it sends in this step, and waits until all peers have. Afterwards the
/// block may read its own lanes, and write into peers' lanes of the next step. False: failed; the block must return.
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

/// At the end of a kernel that exchanged: the next one goes on from here.
__device__ inline void finish_exchanges(const Mesh& mesh, const Turn& turn) {
  if (threadIdx.x == 0) state_of(mesh, mesh.rank).blocks[blockIdx.x].exchanges = turn.exchanges;
}

}  // namespace shoal::collectives::p2p
