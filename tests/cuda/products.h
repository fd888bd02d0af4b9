// Builders, GPU traits and error bounds for tests of products.
#pragma once

#include <gtest/gtest.h>

#include <cmath>
#include <utility>
#include <vector>

#include "devices/cuda/ops/mul_mat_fused.h"
#include "graph/ops/ops.h"
#include "tests/cuda/op_runner.h"
#include "tests/support/dtypes.h"

namespace shoal::test {

/// GPU traits with (hopper) and without (ampere) warpgroup instructions.
inline cuda::GpuTraits hopper(int processors = 132) {
  return {0, 90, processors, 227 * 1024};
}
inline cuda::GpuTraits ampere(int processors = 132) {
  return {0, 80, processors, 163 * 1024};
}

/// The product of a weight of shape `a` and an input of shape `b`.
inline Build product(DType dtype, const Shape& a, const Shape& b, DType b_type = DType::kF32) {
  return [=](Graph& g, TensorContext& w) { return mul_mat(g, w.add("a", dtype, a), g.input("b", b_type, b)); };
}

struct Experts {
  int64_t k, m, experts, slots, x_slots, tokens = 1;
};
inline Tensor* expert_product(Graph& g, TensorContext& w, DType dtype, const Experts& one,
                              const SelectParams& params = {}) {
  Tensor* x = g.input("x", DType::kF32, {one.k, one.x_slots, one.tokens, 1});
  Tensor* ids = g.input("ids", DType::kI32, {one.slots, one.tokens, 1, 1});
  return mul_mat_id(g, w.add("experts", dtype, {one.k, one.m, one.experts, 1}), x, ids, params);
}
inline void check_experts(DType dtype, const Experts& one, const Tolerance& tolerance,
                          const SelectParams& params = {}) {
  const auto build = [&](Graph& g, TensorContext& w) { return expert_product(g, w, dtype, one, params); };
  check_case({Op::kMulMatId, std::string(name_of(dtype)), build, tolerance}, 3);
}

/// Tolerances of the conformance cases. The kernel may round columns to 8 bits if weights are quantised.
inline Tolerance rough(DType a) {
  return {traits(a).is_quantized ? 1e-4 : a == DType::kF32 ? 1e-11 : 1e-6};
}

/// Bounds on the normalised mean squared error. Rounding an operand to halves (11 significant bits) adds 4e-8 to the
/// error. An operand that is stored as the sum of two bf16 terms keeps 16 significant bits. In formats whose scales and
/// minima are products, the kernel also rounds these products. For example, the weights may be uniform in [-1, 1], with
/// a minimum of 1 and scale * code up to 2. Then this rounding adds (2.1e-4^2 + 1.9e-4^2) / (1 / 3) = 2.4e-7. With
/// mxfp4 weights, columns are rounded to bf16 (8 significant bits). The squared error is then 64 times the squared
/// error of halves.
inline double bound(DType a, DType b = DType::kF32) {
  if (a == DType::kMXFP4) return b == DType::kBF16 ? 1e-11 : 4e-6;
  if (a == DType::kQ2_K || a == DType::kQ4_K || a == DType::kQ5_K) return 5e-7;
  if (traits(a).is_quantized) return 2e-7;
  if (a == DType::kF16) return b == DType::kF32 ? 1e-7 : 1e-12;
  if (a == DType::kBF16) return b == DType::kF32 ? 1e-10 : 1e-12;
  return 1e-11;
}

/// If column i of input "b" [k, n] contains a NaN or infinity, this value must reach column i of the result [m, n] and
/// no other column. `run` computes the result from the leaves.
template <class Run>
void check_odd_columns(const Graph& graph, TensorValues& leaves, int64_t m, const Run& run) {
  const Tensor* b = graph.find("b");
  const int64_t k = b->shape[0], n = b->shape[1], column = n / 2;
  const Values clean = run(leaves);
  for (const double odd : {std::nan(""), -std::nan(""), HUGE_VAL, -HUGE_VAL}) {
    for (const int64_t at : {int64_t{0}, int64_t{45}, k - 1}) {
      double& element = leaves[b][static_cast<size_t>(column * k + at)];
      const double before = std::exchange(element, odd);
      const Values values = run(leaves);
      element = before;
      for (size_t i = 0; i < values.size(); ++i) {
        const bool own = static_cast<int64_t>(i) / m == column;
        EXPECT_TRUE(own ? !std::isfinite(values[i]) : values[i] == clean[i])
            << odd << " at " << at << " of " << n << " columns: result " << i << " is " << values[i];
      }
    }
  }
}

}  // namespace shoal::test
