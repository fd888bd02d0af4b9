// The op set: an enumeration, and a table with the properties that an op has on all devices (name, sources, aliasing,
// parameters, shape inference). Both are generated from graph/ops.def. graph/ops/params.h defines the parameters;
// graph/ops/ops.h describes and builds each op.
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

/// Relation between a node's bytes and the bytes of its source 0.
enum class Alias : uint8_t {
  kNone,    ///< the node has its own memory
  kView,    ///< the node has the bytes of source 0 with another shape or strides; no kernel runs
  kWrites,  ///< the node has the bytes of source 0 after the op has written into them (set_rows, set_slice)
};

enum class OpKind : uint8_t { kLeaf, kCompute, kView, kCollective };

struct OpInfo {
  Op op;
  std::string_view name;  ///< as printed and parsed: "mul_mat"
  OpKind kind;
  int min_src, max_src;  ///< number of sources; max_src == -1: no maximum; sources after the first min_src may be
                         ///< nullptr
  Alias alias;
  uint32_t in_place_sources;  ///< bit i: the result may overwrite source i if no later op uses this source. Result and
                              ///< source must also be contiguous and have equal dtypes and shapes.
  OpParams default_params;    ///< default values; the alternative that this variant holds is the op's parameter type
  /// Sets node.dtype and node.shape from node.params and node.src. For views and kWrites, also sets node.strides and
  /// node.view_offset. Throws InvalidArgument "[op name] expected ..., got ..." with a description of the sources.
  void (*infer)(Tensor& node);
};

/// Does not fail if `op` is a valid enumerator.
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
