// Internal to graph/: the inference functions of all ops, and the checks that they share. graph/op.cpp stores the
// functions in the op table. An inference function reads node.params and node.src. The number and presence of sources
// and the type of params have been checked before this call. The function sets dtype and shape; for views and cache
// writes it also sets strides and view_offset. Graph::add_node sets contiguous strides and view_base, and checks that
// the result has whole blocks and an addressable size.
#pragma once

#include <fmt/format.h>

#include <initializer_list>
#include <string>
#include <string_view>
#include <utility>

#include "base/error.h"
#include "graph/tensor.h"

namespace shoal::infer {

#define SHOAL_OP(id, name, kind, min_src, max_src, alias, in_place, params, function) void function(Tensor& node);
#include "graph/ops.def"

/// The checks of one node. A failed check throws InvalidArgument "[mul_mat y] expected k = 8, got 4 (a: w f32 [8, 2],
/// b: x f32 [4, 3])". Text is formatted only on failure.
class Expect {
 public:
  /// `source_names` has one word per source, such as "a b". If there is a single word but several sources, the word
  /// gets numbers: "x0", "x1".
  Expect(const Tensor& node, std::string_view source_names) : node_(node), source_names_(source_names) {}

  /// In the message, the formatted text follows "expected ".
  template <class... Args>
  void operator()(bool condition, fmt::format_string<Args...> format, Args&&... args) const {
    if (!condition) raise(fmt::format(format, std::forward<Args>(args)...));
  }
  /// Checks that source i has one of the dtypes (dtype), a float type (is_float), or a float or quantised type
  /// (float_or_quantized). An absent source passes.
  void dtype(int source, std::initializer_list<DType> allowed) const;
  void is_float(int source) const;
  void float_or_quantized(int source) const;
  /// Checks that source i has exactly this shape. An absent source passes.
  void shape(int source, const Shape& expected) const;
  /// Checks the length of one axis of source i. `what` is the name of this length in messages: "k".
  void axis(int source, int axis, int64_t length, std::string_view what) const;
  /// Checks that the ranges are valid, and that their lengths add up to the length of axis `axis` of source 0. An empty
  /// list passes.
  void select(const SelectParams& params, int axis) const;
  /// Checks a result shape: no negative axis, whole blocks, addressable bytes.
  void valid_result(DType dtype, const Shape& shape) const;

 private:
  [[noreturn]] void raise(const std::string& expected) const;
  std::string source_name(int source) const;

  const Tensor& node_;
  std::string_view source_names_;
};

/// "1 source", "1 to 3 sources" or "1 or more sources" (`most` < 0): the numbers of sources that an op accepts.
std::string source_counts(int least, int most);

/// Whether `whole` is a multiple of `part`. 0 divides only 0.
inline bool divides(int64_t part, int64_t whole) {
  return part == 0 ? whole == 0 : whole % part == 0;
}

/// Whether a tensor of this shape can exist: no axis is negative, a row is a whole number of blocks, and the tensor has
/// at most 2^56 bytes.
bool addressable(DType dtype, const Shape& shape);

template <class P>
const P& params_of(const Tensor& node) {
  return *std::get_if<P>(&node.params);
}

}  // namespace shoal::infer
