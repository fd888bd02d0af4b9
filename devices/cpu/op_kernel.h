// How an op runs on a CPU device: one OpKernel per op, in a table indexed by Op (devices/cpu/ops/table.cpp). An op with
// an empty kernel is not supported; supports_op reads the same table.
//
// The threads of a device's team run the nodes of a plan together. Each node has ctx.parts parts, and run() is called
// once per part, by any free thread. The next node begins when all these calls have returned. A kernel divides its rows
// among the parts. prepare() computes data that all parts need. It is also called once per part, and all of these calls
// return before run() begins. Nodes with small work() have one part. A kernel never throws or allocates, and never
// waits for another part, because the same thread may run that part next. supports() rejects everything that run()
// cannot handle. Nodes with empty results are skipped.
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
  std::byte* workspace = nullptr;  ///< workspace of the node, used by all parts; 64-byte aligned
  bool follows = false;            ///< whether can_follow() was true for the previous node
  Claims* claims = nullptr;        ///< needed when parts > 1
  uint64_t step = 0;               ///< number of this step in `claims`
};

/// The contiguous items [begin, end) of `count` that belong to this part. They begin at a multiple of `unit`.
std::pair<int64_t, int64_t> share(const TeamContext& ctx, int64_t count, int64_t unit = 1);

struct OpKernel {
  void (*run)(const TeamContext& ctx, Tensor& node) = nullptr;
  /// Whether run() handles the node's dtypes, shapes and strides.
  bool (*supports)(const Tensor& node) = nullptr;
  /// Scratch bytes for `parts` parts; nullptr means none.
  size_t (*workspace)(const Tensor& node, int parts) = nullptr;
  /// Rough number of scalar operations, which decides whether parts share the node; nullptr means elements().
  int64_t (*work)(const Tensor& node) = nullptr;
  /// Whether the node can reuse the workspace contents of the node `before`, which runs directly before it and has its
  /// workspace at the same address. If true, ctx.follows is set. nullptr means never.
  bool (*can_follow)(const Tensor& before, const Tensor& node) = nullptr;
  /// Runs before run() if prepares(node, parts) is true. `parts` is the maximum number of parts of the node.
  void (*prepare)(const TeamContext& ctx, Tensor& node) = nullptr;
  bool (*prepares)(const Tensor& node, int parts) = nullptr;
};

/// The kernel of an op. Its `run` is nullptr if the op is not supported.
const OpKernel& kernel_for(Op op);

}  // namespace shoal::cpu
