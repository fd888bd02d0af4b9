// The ops sum_rows and argmax. sum_rows adds in double. If several elements equal the maximum, argmax returns the
// lowest index of these elements. argmax treats NaN as less than every other value. Both ops return 0 for an empty row.
#include "devices/cpu/isa.h"
#include "devices/cpu/ops/ops.h"
#include "devices/cpu/ops/rows.h"

namespace shoal::cpu {
namespace {

float sum_row(const Tensor& x, const std::byte* row) {
  float in[kChunk];
  double sum = 0;
  for (int64_t begin = 0; begin < x.shape[0]; begin += kChunk) {
    const int64_t n = std::min(kChunk, x.shape[0] - begin);
    sum += kernels().rows.sum(load(x, row, begin, n, in), n);
  }
  return static_cast<float>(sum);
}

int32_t argmax_row(const Tensor& x, const std::byte* row) {
  float in[kChunk];
  float best = 0;
  int64_t best_index = -1;
  for (int64_t begin = 0; begin < x.shape[0]; begin += kChunk) {
    const int64_t n = std::min(kChunk, x.shape[0] - begin);
    const float* values = load(x, row, begin, n, in);
    const float top = kernels().vector.max(values, n);
    if (best_index >= 0 && !(top > best)) continue;
    const float* at = std::find(values, values + n, top);
    if (at == values + n) continue;  // all elements of this chunk are NaN
    best = top;
    best_index = begin + (at - values);
  }
  return static_cast<int32_t>(std::max<int64_t>(best_index, 0));
}

template <class T, T (*reduce)(const Tensor&, const std::byte*)>
void run(const TeamContext& ctx, Tensor& node) {
  const Tensor& x = *node.src[0];
  for_rows(ctx, node.shape,
           [&](RowIndex row) { *reinterpret_cast<T*>(row_at(node, row)) = reduce(x, row_at(x, row)); });
}

template <DType dtype>
bool supports(const Tensor& node) {
  return node.dtype == dtype && node.is_contiguous() && is_float(node.src[0]);
}

int64_t work(const Tensor& node) {
  return node.src[0]->elements();
}

}  // namespace

const OpKernel kSumRowsKernel{run<float, sum_row>, supports<DType::kF32>, nullptr, work};
const OpKernel kArgmaxKernel{run<int32_t, argmax_row>, supports<DType::kI32>, nullptr, work};

}  // namespace shoal::cpu
