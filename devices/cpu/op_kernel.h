// Describes how an op runs on a CPU device. A table indexed by Op contains one OpKernel per op
// (devices/cpu/ops/table.cpp). An op with an empty kernel is not supported. supports_op reads the same table.
//
// The threads of a device's team run the nodes of a plan together. Each node has ctx.parts parts. Each part is one call
// of run() by a free thread of the team. The next node begins when all these calls have returned. A kernel divides its
// rows among the parts. prepare() computes data that all parts need. The team also calls prepare() once per part, and
// all of these calls return before run() begins. Nodes with small work() have one part. A kernel never throws or
// allocates. A kernel never waits for another part, because the same thread may run that part next. supports() rejects
// all nodes that run() cannot process. Nodes with empty results are skipped.
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
  std::byte* workspace = nullptr;  ///< workspace of the node, which all parts use; aligned to 64 bytes
  bool follows = false;            ///< whether the node can reuse the workspace contents of the previous node
                                   ///< (can_follow())
  Claims* claims = nullptr;        ///< must not be nullptr if parts > 1
  uint64_t step = 0;               ///< number of this step in `claims`
};

/// Divides `count` items among the parts. Returns the contiguous range [begin, end) of items that belongs to this part.
/// `begin` is a multiple of `unit`.
std::pair<int64_t, int64_t> share(const TeamContext& ctx, int64_t count, int64_t unit = 1);

struct OpKernel {
  void (*run)(const TeamContext& ctx, Tensor& node) = nullptr;
  /// Whether run() can process the node's dtypes, shapes and strides.
  bool (*supports)(const Tensor& node) = nullptr;
  /// Bytes of scratch memory for `parts` parts. nullptr means that the op needs no scratch memory.
  size_t (*workspace)(const Tensor& node, int parts) = nullptr;
  /// Rough number of scalar operations. This number decides whether the node is divided into several parts. nullptr
  /// means that the number is node.elements().
  int64_t (*work)(const Tensor& node) = nullptr;
  /// Whether the node can reuse the workspace contents of the node `before`. `before` runs directly before the node,
  /// and its workspace has the same address. If the result is true, ctx.follows is set. nullptr means that the result
  /// is always false.
  bool (*can_follow)(const Tensor& before, const Tensor& node) = nullptr;
  /// The team calls prepare() before run() if prepares(node, parts) is true. `parts` is the maximum number of parts of
  /// the node.
  void (*prepare)(const TeamContext& ctx, Tensor& node) = nullptr;
  bool (*prepares)(const Tensor& node, int parts) = nullptr;
};

/// Returns the kernel of an op. OpKernel::run is nullptr if the op is not supported.
const OpKernel& kernel_for(Op op);

}  // namespace shoal::cpu
