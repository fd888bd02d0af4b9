// The op set: the enumeration and what is decided once per op for all devices: name, sources, aliasing, parameters,
// shape inference. Both come from the list graph/ops.def; parameters stand in graph/ops/params.h, what an op means and
// its builder in graph/ops/ops.h.
#pragma once

#include <cstdint>
#include <optional>
#include <span>
#include <string_view>

#include "graph/ops/params.h"

namespace shoal {

struct Tensor;

enum class Op : uint8_t {
#define SHOAL_OP(id, ...) k##id,
#include "graph/ops.def"
  kCount
};
inline constexpr int kOpCount = static_cast<int>(Op::kCount);

/// How a node's bytes relate to those of its source 0.
enum class Alias : uint8_t {
  kNone,    ///< memory of its own
  kView,    ///< the same bytes seen differently; nothing runs
  kWrites,  ///< source 0's bytes after writing into them (set_rows)
};

enum class OpKind : uint8_t { kLeaf, kCompute, kView, kCollective };

struct OpInfo {
  Op op;
  std::string_view name;  ///< as printed and parsed: "mul_mat"
  OpKind kind;
  int min_src, max_src;  ///< max_src == -1: any number; sources past min_src may be nullptr
  Alias alias;
  uint32_t in_place_sources;  ///< bit i: the result may overwrite source i when it is last used here and
                              ///< has the same dtype, shape and a contiguous layout
  OpParams default_params;    ///< fixes the variant alternative of the op
  /// Sets node.dtype and node.shape (and strides and offset of views) from node.params and node.src.
  /// Throws InvalidArgument "[op name] expected ..., got ..." with the sources described.
  void (*infer)(Tensor& node);
};

/// Never fails for a valid enumerator.
const OpInfo& info(Op op);
inline std::string_view name_of(Op op) {
  return info(op).name;
}
std::optional<Op> op_from_name(std::string_view name);
inline bool is_view(Op op) {
  return info(op).kind == OpKind::kView;
}
inline bool is_collective(Op op) {
  return info(op).kind == OpKind::kCollective;
}

}  // namespace shoal
