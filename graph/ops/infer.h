// Internal to graph/: the inference function of every op, which graph/op.cpp joins in the op table, and the checks
// that they share. An inference function reads node.params and node.src (number of sources, presence of the
// required ones and the alternative of params are checked already) and sets dtype and shape; those of views and of
// set_rows set strides and view_offset too. Graph::add_node does the rest: contiguous strides, view_base, and the
// check that the result has whole blocks and a size that can be addressed.
#pragma once

#include <fmt/format.h>

#include <initializer_list>
#include <string_view>
#include <utility>

#include "base/error.h"
#include "graph/tensor.h"

namespace shoal::infer {

#define SHOAL_OP(id, name, kind, min_src, max_src, alias, in_place, params, function) void function(Tensor& node);
#include "graph/ops.def"

/// The checks of one node. A failed one throws InvalidArgument
/// "[mul_mat y] expected k = 8, got 4 (a: w f32 [8, 2], b: x f32 [4, 3])". Nothing is formatted before that.
class Expect {
 public:
  /// source_names: one word for each source, "a b"; a single word is numbered ("x0", "x1") when there are more.
  Expect(const Tensor& node, std::string_view source_names) : node_(node), source_names_(source_names) {}

  /// The format continues "expected ".
  template <class... Args>
  void operator()(bool condition, fmt::format_string<Args...> format, Args&&... args) const {
    if (!condition) raise(fmt::format(format, std::forward<Args>(args)...));
  }
  /// Source i has one of the dtypes (f32, f16, bf16; those or a quantised one). An absent source passes.
  void dtype(int source, std::initializer_list<DType> allowed) const;
  void is_float(int source) const;
  void float_or_quantized(int source) const;
  /// Source i has exactly this shape. An absent source passes.
  void shape(int source, const Shape& expected) const;
  /// Axis of source i has this length; `what` is how the op calls it: "k".
  void axis(int source, int axis, int64_t length, std::string_view what) const;
  /// The ranges are valid and, unless there are none, add up to axis `axis` of source 0.
  void select(const SelectParams& params, int axis) const;
  /// A result shape: no axis negative, whole blocks, bytes that can be addressed.
  void valid_result(DType dtype, const Shape& shape) const;

 private:
  [[noreturn]] void raise(const std::string& expected) const;
  std::string source_name(int source) const;

  const Tensor& node_;
  std::string_view source_names_;
};

/// True when `part` goes into `whole` without a rest; 0 goes into 0 alone.
inline bool divides(int64_t part, int64_t whole) {
  return part == 0 ? whole == 0 : whole % part == 0;
}

/// Bytes of a tensor; false when an axis is negative, a row is no whole number of blocks, or the bytes exceed 2^56.
bool addressable(DType dtype, const Shape& shape);

template <class P>
const P& params_of(const Tensor& node) {
  return *std::get_if<P>(&node.params);
}

}  // namespace shoal::infer
