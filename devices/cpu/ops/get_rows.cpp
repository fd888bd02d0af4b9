// get_rows: one row of the result is one row of the table, converted to f32 (or copied: i32). Threads share the
// pieces of all rows, so that few long rows keep a team busy too.
#include <cstring>

#include "devices/cpu/ops/ops.h"
#include "devices/cpu/ops/rows.h"
#include "devices/cpu/ops/select.h"

namespace shoal::cpu {
namespace {

void run(const TeamContext& ctx, Tensor& node) {
  const Tensor& table = *node.src[0];
  const Tensor& ids = *node.src[1];
  const auto& params = std::get<SelectParams>(node.params);
  for_pieces(ctx, node.shape, [&](RowIndex row, int64_t begin, int64_t n) {
    std::byte* to = row_at(node, row) + begin * sizeof(float);
    const int64_t index = local_index(params, table.shape[1], index_at(ids, row.i1, row.i2, row.i3));
    if (index < 0) {
      std::memset(to, 0, n * sizeof(float));
      return;
    }
    const std::byte* from = row_at(table, {index, row.i2, row.i3});
    if (table.dtype == node.dtype) {
      copy_elements(table, from, begin, n, to);
    } else {
      load(table, from, begin, n, reinterpret_cast<float*>(to));
    }
  });
}

bool supports(const Tensor& node) {
  const Tensor& table = *node.src[0];
  const DType ids = node.src[1]->dtype;
  return is_readable(&table) && node.is_contiguous() && (ids == DType::kI32 || ids == DType::kI64) &&
         (node.dtype == DType::kF32 || (node.dtype == DType::kI32 && table.dtype == DType::kI32));
}

}  // namespace

const OpKernel kGetRowsKernel{run, supports, nullptr, nullptr};

}  // namespace shoal::cpu
