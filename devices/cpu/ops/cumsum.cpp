// The op cumsum. Sums of floats are computed in double and rounded once. Four elements are added to each other before
// the sum of all earlier elements is added to them, so a row has a quarter of the dependent additions.
#include "devices/cpu/ops/ops.h"
#include "devices/cpu/ops/rows.h"

namespace shoal::cpu {
namespace {

double add_floats(const float* x, double sum, float* to, int64_t n) {
  int64_t i = 0;
  for (; i + 4 <= n; i += 4) {
    const double a = x[i], b = a + x[i + 1], c = b + x[i + 2], d = c + x[i + 3];
    to[i] = static_cast<float>(sum + a);
    to[i + 1] = static_cast<float>(sum + b);
    to[i + 2] = static_cast<float>(sum + c);
    to[i + 3] = static_cast<float>(sum + d);
    sum += d;
  }
  for (; i < n; ++i) to[i] = static_cast<float>(sum += x[i]);
  return sum;
}

void run_floats(const TeamContext& ctx, Tensor& node) {
  const Tensor& x = *node.src[0];
  for_rows(ctx, node.shape, [&](RowIndex row) {
    float in[kChunk];
    double sum = 0;
    auto* to = reinterpret_cast<float*>(row_at(node, row));
    for (int64_t begin = 0; begin < node.shape[0]; begin += kChunk) {
      const int64_t n = std::min(kChunk, node.shape[0] - begin);
      sum = add_floats(load(x, row_at(x, row), begin, n, in), sum, to + begin, n);
    }
  });
}

// Adds unsigned integers, which wrap around.
void run_integers(const TeamContext& ctx, Tensor& node) {
  const Tensor& x = *node.src[0];
  for_rows(ctx, node.shape, [&](RowIndex row) {
    auto* to = reinterpret_cast<uint32_t*>(row_at(node, row));
    copy_elements(x, row_at(x, row), 0, node.shape[0], reinterpret_cast<std::byte*>(to));
    for (int64_t i = 1; i < node.shape[0]; ++i) to[i] += to[i - 1];
  });
}

void run(const TeamContext& ctx, Tensor& node) {
  node.dtype == DType::kI32 ? run_integers(ctx, node) : run_floats(ctx, node);
}

bool supports(const Tensor& node) {
  const bool integers = node.dtype == DType::kI32 && node.src[0]->dtype == DType::kI32;
  return node.is_contiguous() && (integers || (node.dtype == DType::kF32 && is_float(node.src[0])));
}

}  // namespace

const OpKernel kCumsumKernel{run, supports, nullptr, nullptr};

}  // namespace shoal::cpu
