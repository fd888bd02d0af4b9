// How an op runs on a CPU device: one OpKernel per op, joined in a table (devices/cpu/ops/table.cpp) indexed by
// Op. An op whose kernel is empty is not supported; supports_op reads the same table.
//
// The threads of a device's team do the nodes of a plan together: each node is cut into ctx.parts, run() is called once
// for each of them, by whichever thread is free, and the next node begins when all have returned. A kernel divides its
// rows among the parts; what all of them need first is made by prepare(), in parts, too, of which all have returned
// before run() begins. Nodes whose work() is small have one part. Kernels never throw or allocate, and never wait for
// another part, which the same thread may do next; supports() has refused what they cannot do. Zero-size results are
// not run.
#pragma once

#include <cstddef>
#include <cstdint>
#include <utility>

#include "graph/tensor.h"

namespace shoal::cpu {

class Claims;

struct TeamContext {
  int part = 0;
  int parts = 1;
  std::byte* workspace = nullptr;  ///< the node's workspace, shared by the parts, 64-byte aligned
  bool follows = false;            ///< can_follow() was true of the node before
  Claims* claims = nullptr;        ///< needed when parts > 1
  uint64_t step = 0;               ///< number of the step for them
};

/// Items [begin, end) of `count` that this part has: contiguous, in multiples of `unit`.
std::pair<int64_t, int64_t> share(const TeamContext& ctx, int64_t count, int64_t unit = 1);

struct OpKernel {
  void (*run)(const TeamContext& ctx, Tensor& node) = nullptr;
  /// Dtypes, shapes and strides that run() handles.
  bool (*supports)(const Tensor& node) = nullptr;
  /// Scratch bytes for `parts` parts; nullptr = none.
  size_t (*workspace)(const Tensor& node, int parts) = nullptr;
  /// Rough number of scalar operations, to decide whether to share them; nullptr = elements().
  int64_t (*work)(const Tensor& node) = nullptr;
  /// May the node use what `before`, the node that ran just before it with its workspace at the same address, has left
  /// there? Then ctx.follows is set. nullptr = no.
  bool (*can_follow)(const Tensor& before, const Tensor& node) = nullptr;
  /// Runs before run(), where `prepares` says so of the node and the most parts that it will have.
  void (*prepare)(const TeamContext& ctx, Tensor& node) = nullptr;
  bool (*prepares)(const Tensor& node, int parts) = nullptr;
};

/// run == nullptr when the op is not supported.
const OpKernel& kernel_for(Op op);

}  // namespace shoal::cpu
