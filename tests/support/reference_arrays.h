// Internal to the float64 reference (reference.h): arrays of doubles, and the evaluation of the ops on images.
#pragma once

#include <array>
#include <span>
#include <variant>
#include <vector>

#include "graph/tensor.h"
#include "tests/support/tensors.h"

namespace shoal::test::reference {

using Index = std::array<int64_t, kMaxDims>;

/// A contiguous tensor of doubles.
struct Array {
  Shape shape{1, 1, 1, 1};
  Values values;

  explicit Array(const Shape& s, double value = 0) : shape(s), values(s[0] * s[1] * s[2] * s[3], value) {}
  Array(const Shape& s, Values v) : shape(s), values(std::move(v)) {}
  double& operator[](const Index& i) { return values.at(offset(i)); }
  double operator[](const Index& i) const { return values.at(offset(i)); }
  /// The row along axis 0 that starts at index i. i[0] must be 0.
  std::span<double> row(const Index& i) { return std::span(values).subspan(offset(i), shape[0]); }
  std::span<const double> row(const Index& i) const { return std::span(values).subspan(offset(i), shape[0]); }

 private:
  size_t offset(const Index& i) const { return ((i[3] * shape[2] + i[2]) * shape[1] + i[1]) * shape[0] + i[0]; }
};

template <class F>
void for_each(const Shape& shape, F&& f) {
  Index i;
  for (i[3] = 0; i[3] < shape[3]; ++i[3]) {
    for (i[2] = 0; i[2] < shape[2]; ++i[2]) {
      for (i[1] = 0; i[1] < shape[1]; ++i[1]) {
        for (i[0] = 0; i[0] < shape[0]; ++i[0]) f(i);
      }
    }
  }
}

/// Calls f with the index of the first element of every row.
template <class F>
void for_each_row(const Shape& shape, F&& f) {
  for_each({1, shape[1], shape[2], shape[3]}, f);
}

template <class F>
Array tabulate(const Shape& shape, F&& f) {
  Array result(shape);
  for_each(shape, [&](const Index& i) { result[i] = f(i); });
  return result;
}

inline Index with(Index i, int axis, int64_t value) {
  i[axis] = value;
  return i;
}

using Sources = std::vector<const Array*>;  // nullptr for absent sources

template <class P>
const P& params(const Tensor& node) {
  return std::get<P>(node.params);
}

// in reference_images.cpp
Array conv_2d(const Tensor& node, const Sources& src);
Array conv_transpose_2d(const Tensor& node, const Sources& src);
Array pool_2d(const Tensor& node, const Sources& src);
Array pad(const Tensor& node, const Sources& src);
Array upsample(const Tensor& node, const Sources& src);

}  // namespace shoal::test::reference
