// The op top_k. The result row contains a heap of the k best elements so far. The first entry of the heap is the worst
// of these k elements.
#include <algorithm>
#include <numeric>

#include "devices/cpu/isa.h"
#include "devices/cpu/ops/ops.h"
#include "devices/cpu/ops/rows.h"

namespace shoal::cpu {
namespace {

/// Compares indices. Larger values come first. If values are equal, the lower index comes first. NaN counts as less
/// than every other value. The order is total, so the result equals the result of a stable sort.
struct Before {
  const float* values;
  /// Whether index a comes before index b.
  bool operator()(int32_t a, int32_t b) const {
    const float x = values[a], y = values[b];
    return greater(x, y) || (!greater(y, x) && a < b);
  }
  static bool greater(float x, float y) { return x > y || (y != y && x == x); }
};

/// Bytes of scratch that whole_row() needs; 0 if rows are used in place.
size_t whole_row_bytes(const Tensor& x) {
  return is_direct(x) ? 0 : (x.shape[0] * sizeof(float) + 63) / 64 * 64;
}

/// Returns a whole row as f32. If the row must be converted, the result is in this part's scratch in the workspace.
const float* whole_row(const TeamContext& ctx, const Tensor& x, const std::byte* row) {
  const size_t bytes = whole_row_bytes(x);
  auto* scratch = reinterpret_cast<float*>(bytes ? ctx.workspace + ctx.part * bytes : nullptr);
  return load(x, row, 0, x.shape[0], scratch);
}

void select_row(const float* values, int64_t length, int32_t* best, int64_t k) {
  const Before before{values};
  std::iota(best, best + k, 0);
  std::make_heap(best, best + k, before);
  for (int64_t begin = k; begin < length; begin += kChunk) {
    const int64_t end = std::min(begin + kChunk, length);
    // A later element enters the heap only if it is larger than the worst of the k elements. The worst element may be
    // NaN.
    float worst = values[best[0]];
    if (kernels().vector.max(values + begin, end - begin) <= worst) continue;
    for (int64_t i = begin; i < end; ++i) {
      if (!Before::greater(values[i], worst)) continue;
      std::pop_heap(best, best + k, before);
      best[k - 1] = static_cast<int32_t>(i);
      std::push_heap(best, best + k, before);
      worst = values[best[0]];
    }
  }
  std::sort_heap(best, best + k, before);
}

void run(const TeamContext& ctx, Tensor& node) {
  const Tensor& x = *node.src[0];
  for_rows(ctx, node.shape, [&](RowIndex row) {
    auto* best = reinterpret_cast<int32_t*>(row_at(node, row));
    select_row(whole_row(ctx, x, row_at(x, row)), x.shape[0], best, node.shape[0]);
  });
}

bool supports(const Tensor& node) {
  return node.dtype == DType::kI32 && node.is_contiguous() && is_float(node.src[0]) &&
         node.shape[0] <= node.src[0]->shape[0];
}

size_t workspace(const Tensor& node, int threads) {
  return threads * whole_row_bytes(*node.src[0]);
}

int64_t work(const Tensor& node) {
  return node.src[0]->elements() * 2;
}

}  // namespace

const OpKernel kTopKKernel{run, supports, workspace, work};

}  // namespace shoal::cpu
