// argsort: sorts the indices where the result lies.
#include <algorithm>
#include <bit>
#include <numeric>

#include "devices/cpu/ops/ops.h"
#include "devices/cpu/ops/order.h"

namespace shoal::cpu {
namespace {

void run(const TeamContext& ctx, Tensor& node) {
  const Tensor& x = *node.src[0];
  const bool descending = std::get<ArgsortParams>(node.params).descending;
  for_rows(ctx, node.shape, [&](RowIndex row) {
    auto* indices = reinterpret_cast<int32_t*>(row_at(node, row));
    std::iota(indices, indices + x.shape[0], 0);
    std::sort(indices, indices + x.shape[0], Before{whole_row(ctx, x, row_at(x, row)), descending});
  });
}

bool supports(const Tensor& node) {
  return node.dtype == DType::kI32 && node.is_contiguous() && is_float(node.src[0]);
}

size_t workspace(const Tensor& node, int threads) {
  return threads * whole_row_bytes(*node.src[0]);
}

int64_t work(const Tensor& node) {
  return node.elements() * 4 * std::bit_width(static_cast<uint64_t>(node.shape[0]));
}

}  // namespace

const OpKernel kArgsortKernel{run, supports, workspace, work};

}  // namespace shoal::cpu
