// get_rows: each row of the result is a row of the table, converted to f32. If the table is i32, rows are copied.
#include "devices/cuda/ops/conversion.h"
#include "devices/cuda/ops/map.h"
#include "devices/cuda/ops/ops.h"
#include "devices/cuda/ops/select.h"

namespace shoal::cuda {
namespace {

struct GetRows {
  Operand to, table, ids;
  DType ids_dtype;
  Conversion<> convert;
  bool writes_zeros;  ///< whether this launch writes zeros for rows outside its ranges; true for the first launch
  Selection selection;

  __device__ void operator()(const Index& i) const {
    const int64_t row = selection.local(integer_at(ids_dtype, ids.at({i.i1, i.i2, i.i3, 0})));
    if (row < 0 && !writes_zeros) return;
    convert(row < 0 ? nullptr : table.at({0, row, i.i2, i.i3}), to.at({0, i.i1, i.i2, i.i3}), i.i0);
  }
};

void run(const LaunchContext& context, Tensor& node) {
  const Tensor &table = *node.src[0], &ids = *node.src[1];
  const Operand to = operand_of(node), from = operand_of(table);
  const Conversion<> convert = conversion_of(to, node.dtype, node.shape, from, table.dtype, table.shape);
  Shape shape = node.shape;
  if (convert.eight) shape[0] /= Conversion<>::kItem;
  for_selections(std::get<SelectParams>(node.params), table.shape[1], [&](const Selection& selection, bool is_first) {
    walk(context, shape, GetRows{to, from, operand_of(ids), ids.dtype, convert, is_first, selection});
  });
}

bool supports(const Tensor& node) {
  const Tensor& table = *node.src[0];
  const DType ids = node.src[1]->dtype;
  return is_readable(&table) && node.is_contiguous() && (ids == DType::kI32 || ids == DType::kI64) &&
         (node.dtype == DType::kF32 || (node.dtype == DType::kI32 && table.dtype == DType::kI32)) &&
         can_select(std::get<SelectParams>(node.params));
}

}  // namespace

const OpKernel kGetRowsKernel{run, supports, nullptr};

}  // namespace shoal::cuda
