// How an op runs on a CPU device: one OpKernel per op, joined in a table (devices/cpu/ops/table.cpp) indexed by
// Op; an op without an entry is not supported and supports_op reads the same table.
//
// All threads of a device's team walk the nodes of a plan together: each calls run() with its own thread number
// and the backend puts one barrier after each node. A kernel divides its rows among ctx.threads; it may call
// ctx.barrier() between phases, then all threads must. Nodes whose work() is small run on thread 0 alone (threads ==
// 1). Kernels never throw or allocate; supports() has refused what they cannot do. Zero-size results are not run.
#pragma once

#include <atomic>
#include <cstddef>
#include <cstdint>
#include <utility>

#include "graph/tensor.h"

namespace shoal::cpu {

class TeamBarrier;

struct TeamContext {
  int thread = 0;
  int threads = 1;
  std::byte* workspace = nullptr;  ///< the node's workspace, shared by the team, 64-byte aligned
  TeamBarrier* meeting = nullptr;  ///< needed when threads > 1
  /// Zero when the op begins: how much of its work threads have taken besides their shares. Needed when threads > 1.
  std::atomic<int64_t>* taken = nullptr;
  /// Waits for the whole team; no-op for one thread.
  void barrier() const;
};

/// Items [begin, end) of `count` that this thread does: contiguous, in multiples of `unit`.
std::pair<int64_t, int64_t> share(const TeamContext& ctx, int64_t count, int64_t unit = 1);

struct OpKernel {
  void (*run)(const TeamContext& ctx, Tensor& node) = nullptr;
  /// Dtypes, shapes and strides that run() handles.
  bool (*supports)(const Tensor& node) = nullptr;
  /// Scratch bytes for a team of `threads`; nullptr = none.
  size_t (*workspace)(const Tensor& node, int threads) = nullptr;
  /// Rough number of scalar operations, to decide how many threads are worth waking; nullptr = elements().
  int64_t (*work)(const Tensor& node) = nullptr;
  /// May the node use what `before`, the node that ran just before it with its workspace at the same address, has left
  /// there? Then run_after does what run does, without making it anew. nullptr = no.
  bool (*can_follow)(const Tensor& before, const Tensor& node) = nullptr;
  void (*run_after)(const TeamContext& ctx, Tensor& node) = nullptr;
};

/// run == nullptr when the op is not supported.
const OpKernel& kernel_for(Op op);

}  // namespace shoal::cpu
