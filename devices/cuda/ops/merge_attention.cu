// merge_attention: the result is a weighted sum of rows, one row per part of the KV rows. The weight of a part's row is
// e^(lse of the part - lse of all parts). Here, lse stands for log-sum-exp. A block computes one row of the result.
// There are few parts, so every thread reads the lse of every part.
#include <limits>

#include "devices/cuda/kernels/memory.h"
#include "devices/cuda/ops/ops.h"
#include "devices/cuda/ops/view.h"

namespace shoal::cuda {
namespace {

constexpr int kThreads = 128;
constexpr float kMinusInfinity = -std::numeric_limits<float>::infinity();

/// Returns log(sum of e^x) over row (i1, i2), or -infinity for an empty row.
__device__ __forceinline__ float log_sum_exp(const View& x, int64_t i1, int64_t i2) {
  const std::byte* row = row_at(x, i1, i2, 0);
  float top = kMinusInfinity, sum = 0;
  for (int64_t i = 0; i < x.shape[0]; ++i) top = fmaxf(top, load_as<float>(row + i * x.strides[0]));
  if (top == kMinusInfinity) return top;
  for (int64_t i = 0; i < x.shape[0]; ++i) sum += expf(load_as<float>(row + i * x.strides[0]) - top);
  return top + logf(sum);
}

__global__ void __launch_bounds__(kThreads) merge_attention(View parts, View lse, float* to) {
  let_next_start();
  wait_for_previous();
  const int64_t length = parts.shape[0] - 1;
  const auto heads = static_cast<uint32_t>(parts.shape[1]);
  const uint32_t head = blockIdx.x % heads, query = blockIdx.x / heads;
  const float all = log_sum_exp(lse, head, query);
  for (int64_t i = threadIdx.x; i < length; i += kThreads) {
    float sum = 0;
    for (int64_t part = 0; part < parts.shape[3]; ++part) {
      const auto* from = reinterpret_cast<const float*>(row_at(parts, head, query, part));
      const float own = from[length];
      if (own != kMinusInfinity) sum = fmaf(expf(own - all), from[i], sum);
    }
    to[blockIdx.x * length + i] = sum;
  }
}

void run(const LaunchContext& context, Tensor& node) {
  launch_early(context, merge_attention, dim3(static_cast<unsigned>(node.rows())), dim3(kThreads), 0,
               view_of(*node.src[0]), view_of(*node.src[1]), reinterpret_cast<float*>(node.data));
}

bool supports(const Tensor& node) {
  const Tensor &parts = *node.src[0], &lse = *node.src[1];
  return node.dtype == DType::kF32 && node.is_contiguous() && parts.dtype == DType::kF32 && parts.is_row_contiguous() &&
         lse.dtype == DType::kF32 && node.rows() <= 0x7fffffff;
}

}  // namespace

const OpKernel kMergeAttentionKernel{run, supports, nullptr};

}  // namespace shoal::cuda
