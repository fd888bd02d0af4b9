// Helpers for the files that define conformance cases (op_cases.h).
#pragma once

#include <fmt/format.h>

#include "graph/ops/ops.h"
#include "tests/ops/op_cases.h"

namespace shoal::test {

inline constexpr DType kFloats[] = {DType::kF32, DType::kF16, DType::kBF16};

/// Shapes for which kernels use different code: one element, rows shorter than a vector, odd lengths, rows of more than
/// 1024 elements, many rows, and an empty shape. Weights with 16 or more rows may be packed.
inline constexpr Shape kShapes[] = {{1, 1, 1, 1},    {3, 5, 1, 1},   {7, 3, 2, 2},
                                    {1031, 2, 1, 1}, {64, 33, 3, 1}, {5, 0, 2, 1}};

using Cases = std::vector<OpCase>;
using Build = std::function<Tensor*(Graph&, TensorContext&)>;

/// The rounding error that is allowed for a result of this dtype. The dtypes of the sources do not matter.
inline Tolerance tolerance_of(DType dtype) {
  if (dtype == DType::kF16) return {1e-6};
  return {dtype == DType::kBF16 ? 1e-4 : 1e-11};
}

inline void add_case(Cases& cases, Op op, std::string name, Build build,
                     Tolerance tolerance = tolerance_of(DType::kF32)) {
  cases.push_back({op, std::move(name), std::move(build), tolerance});
}

inline std::string title(DType dtype, const Shape& shape) {
  return fmt::format("{} {}", name_of(dtype), to_string(shape));
}

inline Tensor* plain(Graph& g, DType dtype, const Shape& shape, std::string name = "x") {
  return g.input(std::move(name), dtype, shape);
}
/// A tensor of shape s with gaps between rows and elements. The tensor is a transposed slice of a larger tensor.
inline Tensor* strided(Graph& g, DType dtype, const Shape& s, std::string name = "x") {
  Tensor* whole = g.input(std::move(name), dtype, {s[1] + 2, s[0], s[2], s[3]});
  return transpose(g, slice(g, whole, {0, 1, s[1]}));
}

/// Adds the cases of a row-wise or element-wise op. Each float dtype has a plain case for every shape class, and a
/// strided case.
template <class F>
void add_float_cases(Cases& cases, Op op, const std::string& suffix, F&& node, bool result_has_dtype) {
  for (const DType dtype : kFloats) {
    const Tolerance tolerance = tolerance_of(result_has_dtype ? dtype : DType::kF32);
    for (const Shape& shape : kShapes) {
      add_case(
          cases, op, title(dtype, shape) + suffix,
          [=](Graph& g, TensorContext&) { return node(g, plain(g, dtype, shape)); }, tolerance);
    }
    add_case(
        cases, op, std::string(name_of(dtype)) + " strided" + suffix,
        [=](Graph& g, TensorContext&) {
          return node(g, strided(g, dtype, {37, 6, 2, 2}));
        },
        tolerance);
  }
}

// in image_cases.cpp
void add_pool(Cases& cases);
void add_pad(Cases& cases);
void add_upsample(Cases& cases);
void add_convolutions(Cases& cases);

// in extended_cases.cpp
void add_extended_cases(Cases& cases);

}  // namespace shoal::test
